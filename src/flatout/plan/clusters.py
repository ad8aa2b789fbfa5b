"""Build a cluster from the user's argument: `h100x512`, or the path to a short TOML file."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from flatout.catalog import System, all_gpu_facts, all_systems
from flatout.errors import InputError
from flatout.input_records import read_record
from flatout.plan.ceilings import with_ceilings
from flatout.plan.constants import from_logs
from flatout.plan.inputs import ASSUMED_SHARE
from flatout.plan.shipped import shipped
from flatout.records.machine import GpuFacts
from flatout.records.plan import ClusterSpec

_NAMED = re.compile(r"(.+?)x(\d{1,18})")
_NAMED_X = re.compile(r"(.+x)(\d{1,18})")
# The number of SMs assumed if the GPU's data sheet does not give one; it decides how full the last wave of tiles is.
_ASSUMED_SMS = 148
_ASSUMED_HOST_LINK_GB_PER_S, _ASSUMED_HOST_MEMORY_GB_PER_S = 25.2, 50.0
_ASSUMED_LINK_BYTES_PER_S, _ASSUMED_MEMORY_BYTES_PER_S = 64e9, 1e12
MOST_GPUS = 1 << 20  # ten times the largest clusters; a search then takes seconds
MOST_LIKE_ANY = "h100"


# What a file must give for a GPU that the catalogue does not have, besides its peaks.
_NEEDED = ("memory_gib", "memory_gb_per_s", "link_gb_per_s", "gpus_per_node", "nic_gbit_per_s")
Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
# A cluster, and by operand type, the share of the peak that matrix multiplications were measured to reach.
WithShares = tuple[ClusterSpec, dict[str, float]]


class _ClusterFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML file. `gpu` and `num_gpus` are required; the rest defaults to the GPU's usual system."""

    gpu: str
    num_gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    gpus_per_node: Count | None = None
    nvlink_domain: Count | None = None
    nic_gbit_per_s: Positive | None = None  # per node
    network: Literal["infiniband", "roce", "ethernet"] = "infiniband"
    oversubscription: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    pod_nodes: Count = 1  # nodes that reach each other without the core of the network
    rail_optimized: bool = False
    host_link_gb_per_s: Positive | None = None  # per GPU, one direction
    host_memory_gb_per_s: Positive | None = None  # per GPU
    link_gb_per_s: Positive | None = None  # per GPU, one direction
    memory_gib: Positive | None = None
    memory_gb_per_s: Positive | None = None
    peak_tflops: dict[str, Positive] = {}  # of a GPU that the catalogue does not have: dense, by operand type
    num_sms: Count | None = None
    matmul_tflops: dict[str, Positive] = {}  # measured ceilings by operand type,
    ceilings: str | None = None  # or a file of `flatout bench --json`, relative to this file

    def changes(self) -> dict[str, float]:
        """Return the rates and sizes in the file, by field of `ClusterSpec`."""
        typed = {
            "host_link_bytes_per_s": (self.host_link_gb_per_s, 1e9),
            "host_memory_bytes_per_s": (self.host_memory_gb_per_s, 1e9),
            "link_bytes_per_s": (self.link_gb_per_s, 1e9),
            "memory_bytes_per_s": (self.memory_gb_per_s, 1e9),
        }
        rates = {field: value * unit for field, (value, unit) in typed.items() if value is not None}
        return rates if self.memory_gib is None else {**rates, "memory_bytes": int(self.memory_gib * 2**30)}


def cluster(name: str) -> WithShares:
    """Return the cluster that `SYSTEMxCOUNT` or the path to a TOML file names. Raise InputError if it is neither."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return _from_toml(path)
    match = _of_name_that_ends_in_x(name.lower()) or _NAMED.fullmatch(name.lower())
    if not match:
        raise InputError(
            f"`--cluster` must be SYSTEMxGPUS or a TOML file, but got `{name}`", hint="for example: h100x512"
        )
    return of_system(name, system(match[1]), int(match[2]))


def _of_name_that_ends_in_x(name: str) -> re.Match[str] | None:
    """Return the match of a system whose own name ends in an x: `mi300x8` is eight MI300X, as `mi300xx8` is."""
    match = _NAMED_X.fullmatch(name)
    is_system = match is not None and match[1] in all_systems() and match[1][:-1] not in all_systems()
    return match if is_system else None


def system(alias: str) -> System:
    """Return the system with this alias. Raise InputError with the nearest alias if it is unknown."""
    systems = all_systems()
    if alias.lower() in systems:
        return systems[alias.lower()]
    close = difflib.get_close_matches(alias.lower(), systems, n=1, cutoff=0.1) or [MOST_LIKE_ANY]
    raise InputError(
        f"the GPU must be in the catalogue, but got `{alias}`",
        hint=f"the nearest is `{close[0]}`; all: {', '.join(systems)}; describe any other GPU in a TOML file, with its "
        "peak_tflops",
    )


def of_system(
    name: str,
    system: System,
    num_gpus: int,
    *,
    gpus_per_node: int | None = None,
    nvlink_domain: int | None = None,
    nic_bytes_per_s: float | None = None,
    facts: GpuFacts | None = None,
) -> WithShares:
    """Return a cluster of a system with this number of GPUs.

    `nic_bytes_per_s` is per node; `facts` are those of a GPU that the catalogue does not have.
    """
    if not 1 <= num_gpus <= MOST_GPUS:
        raise InputError(
            f"a cluster must have 1 to {MOST_GPUS:,} GPUs, but `{name}` has {num_gpus:,}", hint="for example: h100x8"
        )
    facts = facts or next(facts for facts in all_gpu_facts() if facts.name == system.gpu)
    per_node = gpus_per_node or system.gpus_per_node
    node_bytes_per_s = nic_bytes_per_s or _bytes_per_s(system.nic_gbit_per_s)
    made = ClusterSpec(
        name=name,
        gpu=facts.name,
        num_gpus=num_gpus,
        gpus_per_node=per_node,
        nvlink_domain=nvlink_domain or _usual_domain(system, per_node),
        link_bytes_per_s=_link_bytes_per_s(system, facts),
        nic_bytes_per_s=node_bytes_per_s / per_node,
        host_link_bytes_per_s=system.host_link_gb_per_s * 1e9,
        host_memory_bytes_per_s=system.host_memory_gb_per_s * 1e9,
        memory_bytes=facts.memory_bytes,
        memory_bytes_per_s=facts.memory_bytes_per_s or _ASSUMED_MEMORY_BYTES_PER_S,
        peak_flops_per_s=facts.peak_flops_per_s,
        num_sms=facts.num_sms or _ASSUMED_SMS,
    )
    return made, system.assumed_share | system.matmul_share


def _usual_domain(system: System, gpus_per_node: int) -> int:
    """Return the GPUs that reach each other over NVLink, where a node has as many GPUs as given.

    NVLink ends with the node, except in systems whose domain spans nodes (NVL72).
    """
    spans_nodes = system.nvlink_domain > system.gpus_per_node
    return max(system.nvlink_domain, gpus_per_node) if spans_nodes else gpus_per_node


def _link_bytes_per_s(system: System, facts: GpuFacts) -> float:
    """Return the rate of one GPU's links to its peers, one direction."""
    if system.link_gb_per_s is not None:
        return system.link_gb_per_s * 1e9
    return (facts.link_bytes_per_s or _ASSUMED_LINK_BYTES_PER_S) / 2


def _bytes_per_s(gbit_per_s: float) -> float:
    return gbit_per_s / 8 * 1e9


def _from_toml(path: Path) -> WithShares:
    typed = _read_toml(path)
    base, shares = of_system(
        path.stem,
        _typed_system(path, typed) if typed.peak_tflops else system(typed.gpu),
        typed.num_gpus,
        facts=_typed_facts(typed) if typed.peak_tflops else None,
        gpus_per_node=typed.gpus_per_node,
        nvlink_domain=typed.nvlink_domain,
        nic_bytes_per_s=None if typed.nic_gbit_per_s is None else _bytes_per_s(typed.nic_gbit_per_s),
    )
    measured = _matmul_shares(path, typed, base)
    typed_cluster = msgspec.structs.replace(
        base,
        oversubscription=typed.oversubscription,
        pod_gpus=typed.pod_nodes * base.gpus_per_node,
        is_rail_optimized=typed.rail_optimized,
        fabric="rail" if typed.rail_optimized else "fat-tree",
        network=typed.network,
        origin="measured" if measured else "typed",
        **typed.changes(),
    )
    shares = {**shares, **measured}
    if typed.ceilings is None:
        return typed_cluster, shares
    return with_ceilings(typed_cluster, shares, path.parent / typed.ceilings, from_logs(shipped().logs))


def _typed_facts(typed: _ClusterFile) -> GpuFacts:
    """Return the facts of a GPU whose peaks the file gives."""
    return GpuFacts(
        name=typed.gpu,
        reported_names=(),
        vendor="",
        memory_bytes=int((typed.memory_gib or 0.0) * 2**30),
        memory_bytes_per_s=(typed.memory_gb_per_s or 0.0) * 1e9,
        peak_flops_per_s={dtype: tflops * 1e12 for dtype, tflops in typed.peak_tflops.items()},
        num_sms=typed.num_sms,
        tdp_w=None,
        link_bytes_per_s=None,
        source="typed",
        date="",
    )


def _typed_system(path: Path, typed: _ClusterFile) -> System:
    """Return the system of a GPU whose peaks the file gives. Raise InputError if the file lacks another number."""
    missing = [name for name in _NEEDED if getattr(typed, name) is None]
    if missing:
        raise InputError(
            f"a GPU with `peak_tflops` in `{path}` needs {', '.join(_NEEDED)}, but the file lacks {', '.join(missing)}",
            hint="for example: memory_gib = 128, memory_gb_per_s = 3700, link_gb_per_s = 300 (one direction)",
        )
    unknown = [dtype for dtype in typed.peak_tflops if dtype not in ASSUMED_SHARE]
    if unknown or not {"fp16", "bf16"} & set(typed.peak_tflops):
        raise InputError(
            f"`peak_tflops` in `{path}` must have fp16 or bf16, and only types among {', '.join(ASSUMED_SHARE)}, but "
            f"has {', '.join(typed.peak_tflops)}",
            hint="[peak_tflops] bf16 = 432, fp8 = 864: dense, without sparsity",
        )
    assert typed.gpus_per_node is not None and typed.nic_gbit_per_s is not None  # for mypy: not missing
    return System(
        aliases=(typed.gpu,),
        gpu=typed.gpu,
        gpus_per_node=typed.gpus_per_node,
        nvlink_domain=typed.nvlink_domain or typed.gpus_per_node,
        nic_gbit_per_s=typed.nic_gbit_per_s,
        host_link_gb_per_s=_ASSUMED_HOST_LINK_GB_PER_S,
        host_memory_gb_per_s=_ASSUMED_HOST_MEMORY_GB_PER_S,
        link_gb_per_s=typed.link_gb_per_s,
        source="typed",
        date="",
    )


def _read_toml(path: Path) -> _ClusterFile:
    return read_record(
        path, _ClusterFile, hint='it needs at least: gpu = "h100" and num_gpus = 512', encoding="utf-8-sig"
    )


def _matmul_shares(path: Path, typed: _ClusterFile, base: ClusterSpec) -> dict[str, float]:
    """Return the ceilings that the user gave as shares of the peaks."""
    shares: dict[str, float] = {}
    for dtype, tflops in typed.matmul_tflops.items():
        peak = base.peak_flops_per_s.get(dtype)
        if peak is None or tflops * 1e12 > peak:
            peaks = [f"{known} {value / 1e12:,.0f}" for known, value in base.peak_flops_per_s.items()]
            raise InputError(
                f"`matmul_tflops` in `{path}` must be for a type that {base.gpu} has, and at most its peak, but is "
                f"{dtype} = {tflops:g}",
                hint=f"peaks in TFLOP/s, dense: {', '.join(peaks)}",
            )
        shares[dtype] = tflops * 1e12 / peak
    return shares
