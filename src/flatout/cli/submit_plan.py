"""How many nodes and GPUs a plan is for: what `flatout plan --json` printed -> what a job of it asks for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError, UsageError
from flatout.records.plan import Layout

_NAMED = re.compile(r"(.+?)x(\d+)")
_Degree = Annotated[int, msgspec.Meta(ge=1)]


class _Head(msgspec.Struct, frozen=True):
    schema: str = ""
    version: int = 0


class _Degrees(msgspec.Struct, frozen=True):
    """Checked apart, since their product becomes the size of a job."""

    tp: _Degree
    pp: _Degree
    cp: _Degree
    dp: _Degree

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


class _Best(msgspec.Struct, frozen=True):
    layout: msgspec.Raw


class _Read(msgspec.Struct, frozen=True):
    """What is needed of a plan."""

    cluster: str
    layouts: tuple[_Best, ...]
    command: tuple[str, ...] = ()


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    layout: str
    num_nodes: int
    gpus_per_node: int


def read_planned(path: Path, nodes: int | None, gpus: int | None) -> Planned:
    """Of the fastest layout. InputError: no plan; UsageError: it contradicts `--nodes` or `--gpus`."""
    from flatout.report.plan_text import layout_text

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    way_out = "flatout plan --model llama3-8b --cluster h100x16 --json > plan.json"
    try:
        head = msgspec.json.decode(data, type=_Head)
        if (head.schema, head.version) != ("flatout/plan", 1):
            found = f"{head.schema or 'no schema'}, version {head.version}"
            raise InputError(f"`--plan` must be flatout/plan, version 1, but `{path}` has {found}", hint=way_out)
        plan = msgspec.json.decode(data, type=_Read)
        if not plan.layouts:
            raise InputError(f"`{path}` has no layout: none fits", hint="give the plan more GPUs: --cluster")
        best = plan.layouts[0].layout
        num_gpus = msgspec.json.decode(best, type=_Degrees).num_gpus
        layout = layout_text(msgspec.json.decode(best, type=Layout))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is no plan: {error}", hint=way_out) from error
    catalogued = _catalogued_gpus_per_node(plan, num_gpus, path)
    if gpus is not None and catalogued is not None and gpus != catalogued:
        raise UsageError(
            f"`--gpus` must be what the plan is for: {plan.cluster} has {catalogued} GPUs a node, but --gpus is {gpus}",
            hint="leave --gpus out, or plan with a TOML that has gpus_per_node",
        )
    per_node = catalogued if catalogued is not None else gpus
    if not per_node:
        raise UsageError(
            f"`--plan` needs --gpus, the GPUs of each node: of {plan.cluster} the plan only says {num_gpus} in all",
            hint="--gpus 8, say",
        )
    if num_gpus % per_node:
        raise UsageError(
            f"the plan's {num_gpus} GPUs must be whole nodes, but a node has {per_node}",
            hint="plan for a multiple of it: --cluster",
        )
    if nodes is not None and nodes * per_node != num_gpus:
        raise UsageError(
            f"`--nodes` must be what the plan is for: {num_gpus} GPUs are {num_gpus // per_node} nodes of {per_node}, "
            f"but --nodes is {nodes}",
            hint="leave --nodes out, or plan again for another --cluster",
        )
    return Planned(path=path, layout=layout, num_nodes=num_gpus // per_node, gpus_per_node=per_node)


def _catalogued_gpus_per_node(plan: _Read, num_gpus: int, path: Path) -> int | None:
    """Of a cluster by its short name, as h100x16; None: the user's own TOML, of which the plan does not say it."""
    from flatout.plan.clusters import system

    name = _NAMED.fullmatch(plan.cluster.lower())
    if name is None or any(word.endswith(".toml") for word in plan.command):
        return None
    if int(name[2]) != num_gpus:
        raise InputError(
            f"a plan's layout must take all GPUs, but in `{path}` it takes {num_gpus} of {plan.cluster}",
            hint="plan again: flatout plan --json",
        )
    return min(system(name[1]).gpus_per_node, num_gpus)
