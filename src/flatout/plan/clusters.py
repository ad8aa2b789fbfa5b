"""A cluster from what the user names: `h100x512`, or a short TOML."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from flatout.catalog import System, all_gpu_facts, all_systems
from flatout.errors import InputError
from flatout.plan.ceilings import with_ceilings
from flatout.plan.constants import from_logs
from flatout.plan.shipped import shipped
from flatout.records.machine import GpuFacts
from flatout.records.plan import Cluster

_NAMED = re.compile(r"(.+?)x(\d+)")
# SMs of a GPU whose data sheet does not say: the last wave of tiles is then as likely full as another's.
_ASSUMED_SMS = 148
MOST_GPUS = 1 << 20  # ten times the largest clusters; the search takes seconds then


Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Typed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML: `gpu` and `num_gpus` are needed, the rest has the defaults of the GPU's usual system."""

    gpu: str
    num_gpus: int
    gpus_per_node: Count | None = None
    nvlink_domain: Count | None = None
    nic_gbit_per_s: Positive | None = None  # of a node
    network: Literal["infiniband", "roce", "ethernet"] = "infiniband"
    oversubscription: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    pod_nodes: Count = 1  # nodes that reach each other without the network's core
    rail_optimized: bool = False
    host_link_gb_per_s: Positive | None = None  # of a GPU, one direction
    host_memory_gb_per_s: Positive | None = None  # for each GPU
    link_gb_per_s: Positive | None = None  # of a GPU, one direction
    memory_gib: Positive | None = None
    memory_gb_per_s: Positive | None = None
    matmul_tflops: dict[str, Positive] = {}  # measured ceilings, by operand type
    ceilings: str | None = None  # or a file of `flatout bench --json`, beside this one


def cluster(name: str) -> tuple[Cluster, dict[str, float]]:
    """`SYSTEMxCOUNT` or a path to a TOML; with it, the share of each peak that products were measured to reach."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return _from_toml(path)
    match = _NAMED.fullmatch(name.lower())
    if not match:
        raise InputError(
            f"`--cluster` must be SYSTEMxGPUS or a TOML file, but got `{name}`", hint="for example: h100x512"
        )
    return of_system(name, system(match[1]), int(match[2]))


def system(alias: str) -> System:
    """By its alias. InputError with the nearest one: unknown."""
    systems = all_systems()
    if alias.lower() in systems:
        return systems[alias.lower()]
    close = difflib.get_close_matches(alias.lower(), systems, n=1, cutoff=0.1)
    raise InputError(
        f"the GPU must be one of the catalogue, but got `{alias}`",
        hint=f"the nearest is `{(close or ['h100'])[0]}`; all: {', '.join(systems)}; another one goes into a TOML",
    )


def of_system(
    name: str,
    found: System,
    num_gpus: int,
    *,
    gpus_per_node: int | None = None,
    nvlink_domain: int | None = None,
    nic_bytes_per_s: float | None = None,
) -> tuple[Cluster, dict[str, float]]:
    """A system of the catalogue with so many GPUs; `nic_bytes_per_s` is of a node."""
    if not 1 <= num_gpus <= MOST_GPUS:
        raise InputError(
            f"a cluster must have 1 to {MOST_GPUS:,} GPUs, but `{name}` has {num_gpus:,}", hint="for example: h100x8"
        )
    facts = _gpu(found.gpu)
    per_node = gpus_per_node or found.gpus_per_node
    node_rate = nic_bytes_per_s or found.nic_gbit_per_s / 8 * 1e9
    return (
        Cluster(
            name=name,
            gpu=facts.name,
            num_gpus=num_gpus,
            gpus_per_node=per_node,
            nvlink_domain=nvlink_domain or max(found.nvlink_domain, per_node),
            link_bytes_per_s=(facts.link_bytes_per_s or 64e9) / 2,
            nic_bytes_per_s=node_rate / per_node,
            host_link_bytes_per_s=found.host_link_gb_per_s * 1e9,
            host_memory_bytes_per_s=found.host_memory_gb_per_s * 1e9,
            memory_bytes=facts.memory_bytes,
            memory_bytes_per_s=facts.memory_bytes_per_s or 1e12,
            peak_flops_per_s=facts.peak_flops_per_s,
            num_sms=facts.num_sms or _ASSUMED_SMS,
        ),
        found.assumed_share | found.matmul_share,
    )


def _gpu(name: str) -> GpuFacts:
    return next(facts for facts in all_gpu_facts() if facts.name == name)


def _from_toml(path: Path) -> tuple[Cluster, dict[str, float]]:
    try:
        typed = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8-sig")), _Typed)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"`{path}` is no cluster: {error}", hint='it needs at least: gpu = "h100" and num_gpus = 512'
        ) from error
    found = system(typed.gpu)
    base, shares = of_system(
        path.stem,
        found,
        typed.num_gpus,
        gpus_per_node=typed.gpus_per_node,
        nvlink_domain=typed.nvlink_domain,
        nic_bytes_per_s=typed.nic_gbit_per_s / 8 * 1e9 if typed.nic_gbit_per_s else None,
    )
    for dtype, tflops in typed.matmul_tflops.items():
        peak = base.peak_flops_per_s.get(dtype)
        if peak is None or tflops * 1e12 > peak:
            peaks = ", ".join(f"{known} {value / 1e12:,.0f}" for known, value in base.peak_flops_per_s.items())
            raise InputError(
                f"`matmul_tflops` in `{path}` must be of a type that {base.gpu} has and at most its peak, but says "
                f"{dtype} = {tflops:g}",
                hint=f"peaks in TFLOP/s, dense: {peaks}",
            )
    measured = {dtype: tflops * 1e12 / base.peak_flops_per_s[dtype] for dtype, tflops in typed.matmul_tflops.items()}
    changed = msgspec.structs.replace(
        base,
        oversubscription=typed.oversubscription,
        pod_gpus=typed.pod_nodes * base.gpus_per_node,
        is_rail_optimized=typed.rail_optimized,
        network=typed.network,
        host_link_bytes_per_s=(typed.host_link_gb_per_s or base.host_link_bytes_per_s / 1e9) * 1e9,
        host_memory_bytes_per_s=(typed.host_memory_gb_per_s or base.host_memory_bytes_per_s / 1e9) * 1e9,
        link_bytes_per_s=typed.link_gb_per_s * 1e9 if typed.link_gb_per_s else base.link_bytes_per_s,
        memory_bytes=int(typed.memory_gib * 2**30) if typed.memory_gib else base.memory_bytes,
        memory_bytes_per_s=typed.memory_gb_per_s * 1e9 if typed.memory_gb_per_s else base.memory_bytes_per_s,
        origin="measured" if measured else "typed",
    )
    if typed.ceilings is not None:
        return with_ceilings(changed, {**shares, **measured}, path.parent / typed.ceilings, from_logs(shipped().logs))
    return changed, {**shares, **measured}
