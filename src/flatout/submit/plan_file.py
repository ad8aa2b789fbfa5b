"""Read from the output of `flatout plan --json` the number of nodes and GPUs of its fastest layout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError, UsageError
from flatout.input_files import decode_json, read_bytes
from flatout.plan.clusters import system
from flatout.records.plan import Layout
from flatout.report.plan_text import layout_text

_SHORT_NAME = re.compile(r"(.+?)x(\d+)")
_EXAMPLE = "flatout plan --model llama3-8b --cluster h100x16 --json > plan.json"
_Degree = Annotated[int, msgspec.Meta(ge=1)]


class _Head(msgspec.Struct, frozen=True):
    schema: str = ""
    version: int = 0


class _Degrees(msgspec.Struct, frozen=True):
    """The degrees of a layout, whose product becomes the size of the job."""

    tp: _Degree
    pp: _Degree
    cp: _Degree
    dp: _Degree

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


class _PlannedLayout(msgspec.Struct, frozen=True):
    layout: msgspec.Raw


class _PlanFile(msgspec.Struct, frozen=True):
    """The parts of a plan that a submission needs."""

    cluster: str
    layouts: tuple[_PlannedLayout, ...]
    command: tuple[str, ...] = ()


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest layout of a plan."""

    path: Path
    layout: str
    num_nodes: int
    gpus_per_node: int


def read_planned(path: Path, num_nodes: int | None, gpus_per_node: int | None) -> Planned:
    """Read the fastest layout. `num_nodes` and `gpus_per_node` are given by the user; None: taken from the plan.

    Raises InputError if the file is not a plan, UsageError if the plan contradicts `--nodes` or `--gpus`.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        plan = _decode(data, path)
        fastest = plan.layouts[0].layout
        num_gpus = decode_json(fastest, type=_Degrees).num_gpus
        layout = layout_text(decode_json(fastest, type=Layout))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is not a plan: {error}", hint=_EXAMPLE) from error
    per_node = _gpus_per_node(plan, num_gpus, path, gpus_per_node)
    planned_nodes = _num_nodes(num_gpus, per_node, num_nodes)
    return Planned(path=path, layout=layout, num_nodes=planned_nodes, gpus_per_node=per_node)


def _decode(data: bytes, path: Path) -> _PlanFile:
    head = decode_json(data, type=_Head)
    if (head.schema, head.version) != ("flatout/plan", 1):
        actual = f"{head.schema or 'no schema'}, version {head.version}"
        raise InputError(f"`--plan` must be flatout/plan, version 1, but `{path}` has {actual}", hint=_EXAMPLE)
    plan = decode_json(data, type=_PlanFile)
    if not plan.layouts:
        raise InputError(f"`{path}` has no layout: none fits", hint="plan for more GPUs: --cluster")
    return plan


def _gpus_per_node(plan: _PlanFile, num_gpus: int, path: Path, gpus_per_node: int | None) -> int:
    catalogued = _catalogued_gpus_per_node(plan, num_gpus, path)
    if catalogued is None:
        if not gpus_per_node:
            raise UsageError(
                f"`--plan` needs --gpus, the GPUs per node: the plan says only that {plan.cluster} has "
                f"{num_gpus} in total",
                hint="pass the GPUs per node, e.g. --gpus 8",
            )
        return gpus_per_node
    if gpus_per_node is not None and gpus_per_node != catalogued:
        raise UsageError(
            f"`--gpus` must match the plan: {plan.cluster} has {catalogued} GPUs per node, but --gpus is "
            f"{gpus_per_node}",
            hint="omit --gpus, or plan with a TOML file that has gpus_per_node",
        )
    return catalogued


def _num_nodes(num_gpus: int, per_node: int, num_nodes: int | None) -> int:
    if num_gpus % per_node:
        raise UsageError(
            f"the plan's {num_gpus} GPUs must be whole nodes, but a node has {per_node}",
            hint=f"plan for a multiple of {per_node} GPUs: --cluster",
        )
    planned_nodes = num_gpus // per_node
    if num_nodes is not None and num_nodes != planned_nodes:
        raise UsageError(
            f"`--nodes` must match the plan: {num_gpus} GPUs are {planned_nodes} nodes of {per_node}, "
            f"but --nodes is {num_nodes}",
            hint="omit --nodes, or plan again for another --cluster",
        )
    return planned_nodes


def _catalogued_gpus_per_node(plan: _PlanFile, num_gpus: int, path: Path) -> int | None:
    """Return the GPUs per node of a cluster with a short name, e.g. h100x16; None for the user's own TOML."""
    name = _SHORT_NAME.fullmatch(plan.cluster.lower())
    if name is None or any(word.endswith(".toml") for word in plan.command):
        return None
    if int(name[2]) != num_gpus:
        raise InputError(
            f"a plan's layout must use all GPUs, but in `{path}` it uses {num_gpus} of {plan.cluster}",
            hint="plan again: flatout plan --json",
        )
    return min(system(name[1]).gpus_per_node, num_gpus)
