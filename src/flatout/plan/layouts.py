"""Every valid layout of a workload on a cluster, as columns.

The rules, and who sets them (Megatron-LM's arguments.py and the papers named in the other files): degrees multiply to
the number of GPUs; TP divides the heads, the hidden width and the feed-forward widths, and key-value heads or the
other way round; the pipeline's chunks divide the layers, or without interleaving leave each stage at least one;
interleaving needs the micro-batches to be a multiple of the stages; CP divides the sequence in twice as many pieces;
EP divides the experts and the ranks of a stage.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatout.errors import InputError, UsageError
from flatout.plan.case import RECOMPUTE, SCHEDULES
from flatout.records.plan import Cluster, Layout, Workload

Columns = dict[str, npt.NDArray[np.float64]]
DIALS = ("tp", "sp", "pp", "vpp", "cp", "ep", "zero", "shard", "offload", "micro_batch", "recompute", "schedule")
# Beyond these no published run goes, and a search would list little else.
MOST_CHUNKS, MOST_CP, MOST_TP, MOST_MICRO_BATCH = 64, 64, 64, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What stays the same in a search: sequences a step, and tokens of one."""

    workload: Workload
    cluster: Cluster
    global_batch: int
    seq: int
    document: int = 0  # tokens of one, where several are packed into a sequence
    offloads: bool = False  # whether layouts that keep the optimizer in the host's memory are listed too


def divisors(number: int, most: int | None = None) -> list[int]:
    """In rising order, none above `most`."""
    return [value for value in range(1, min(number, most or number) + 1) if number % value == 0]


def tp_is_valid(workload: Workload, tp: int) -> bool:
    """Whether TP can split the workload's widths."""
    w = workload
    widths = [w.hidden, w.num_heads, w.ffn or tp, w.shared_ffn or tp]
    kv = w.num_kv_heads
    return all(width % tp == 0 for width in widths) and (kv % tp == 0 or tp % kv == 0)


def chunks_are_valid(workload: Workload, pp: int, vpp: int) -> bool:
    """Whether the layers can be dealt to the pipeline's chunks."""
    layers = workload.num_layers
    if layers % (pp * vpp) == 0:
        return vpp == 1 or pp > 1
    return vpp == 1 and pp <= layers and (pp - 1) * -(-layers // pp) < layers


def cp_is_valid(seq: int, cp: int, tp: int) -> bool:
    """Causal context parallelism gives each rank two pieces; sequence parallelism splits those by TP."""
    return cp == 1 or seq % (2 * cp * tp) == 0


def degrees(job: Job) -> Iterator[tuple[int, int, int, int]]:
    """Valid (tp, pp, cp, ep)."""
    workload, num_gpus = job.workload, job.cluster.num_gpus
    for tp in divisors(num_gpus, MOST_TP):
        if not tp_is_valid(workload, tp):
            continue
        for pp in divisors(num_gpus // tp, workload.num_layers):
            if not chunks_are_valid(workload, pp, 1):
                continue
            for cp in divisors(num_gpus // (tp * pp), MOST_CP):
                if not cp_is_valid(job.seq, cp, tp):
                    continue
                stage = num_gpus // pp
                eps = divisors(workload.num_experts) if workload.num_experts else [1]
                yield from ((tp, pp, cp, ep) for ep in eps if stage % ep == 0)


def all_layouts(job: Job) -> Columns:
    """One row a valid layout; `recompute` and `schedule` are indices of their names."""
    rows: list[npt.NDArray[np.float64]] = []
    for tp, pp, cp, ep in degrees(job):
        dp = job.cluster.num_gpus // (tp * pp * cp)
        if job.global_batch % dp:
            continue
        replica = job.global_batch // dp
        chunks = [
            v
            for v in divisors(job.workload.num_layers // pp or 1, MOST_CHUNKS)
            if chunks_are_valid(job.workload, pp, v)
        ]
        zeros = _zeros(job, dp * cp, tp, pp)
        micro = np.array(divisors(replica, MOST_MICRO_BATCH), dtype=np.float64)
        grid = np.meshgrid(
            micro,
            chunks,
            np.arange(len(zeros)),
            [0.0, 1.0] if tp > 1 else [0.0],
            np.arange(3.0),
            np.arange(3.0),
            indexing="ij",
        )
        micro_batch, vpp, kind, sp, recompute, schedule = (axis.ravel() for axis in grid)
        zero, shard, offload = np.array(zeros)[kind.astype(np.intp)].T
        num_micro = replica / micro_batch
        plain = (schedule == 1) | ((pp > 1) & (vpp == 1))  # one stage has one schedule, chunks have theirs
        keep = plain & ((vpp == 1) | (num_micro % pp == 0)) & ((zero != 2) | (num_micro == 1))
        count = int(keep.sum())
        fixed = [np.full(count, value, dtype=np.float64) for value in (tp, pp, cp, ep, dp)]
        varied = (sp, vpp, zero, shard, offload, micro_batch, num_micro, recompute, schedule)
        rows.append(np.stack([*fixed, *(axis[keep] for axis in varied)]))
    names = ["tp", "pp", "cp", "ep", "dp", "sp", "vpp", "zero", "shard", "offload"]
    names += ["micro_batch", "num_micro", "recompute", "schedule"]
    if not rows:
        return {name: np.zeros(0) for name in names}
    return dict(zip(names, np.concatenate(rows, axis=1), strict=True))


def _zeros(job: Job, replicas: int, tp: int, pp: int) -> list[tuple[float, float, float]]:
    """What of the replicas' states is sharded, over how many of them, and whether the optimizer is on the host.

    A smaller group than all of them is that of an NVLink domain: its shards are gathered without the network.
    """
    if replicas == 1:
        return [(0.0, 0.0, 0.0), *([(0.0, 0.0, 1.0)] if job.offloads else [])]
    near = max((n for n in divisors(replicas) if n * tp <= job.cluster.nvlink_domain), default=1)
    groups = [0.0, *([float(near)] if 1 < near < replicas else [])]
    # With a pipeline, gradients stay whole while its micro-batches add to them.
    kinds = [(1.0, group) for group in groups] + ([] if pp > 1 else [(2.0, 0.0)]) + [(3.0, group) for group in groups]
    on_host = [(zero, shard, 1.0) for zero, shard in kinds] if job.offloads else []
    return [(0.0, 0.0, 0.0), *((zero, shard, 0.0) for zero, shard in kinds), *on_host]


def layout_at(columns: Columns, row: int) -> Layout:
    """One row as a record."""

    def whole(name: str) -> int:
        return int(columns[name][row])

    return Layout(
        tp=whole("tp"),
        sequence_parallel=bool(columns["sp"][row]),
        pp=whole("pp"),
        vpp=whole("vpp"),
        cp=whole("cp"),
        ep=whole("ep"),
        dp=whole("dp"),
        zero=whole("zero"),
        shard=whole("shard"),
        offload=bool(columns["offload"][row]),
        micro_batch=whole("micro_batch"),
        num_micro_batches=whole("num_micro"),
        recompute=RECOMPUTE[whole("recompute")],
        schedule=SCHEDULES[whole("schedule")],
    )


def case_columns(columns: Columns, rows: slice | npt.NDArray[np.intp]) -> dict[str, npt.NDArray[np.float64]]:
    """The layout's part of a case."""
    part = {name: values[rows] for name, values in columns.items()}
    recompute, schedule = part.pop("recompute"), part.pop("schedule")
    return {
        **part,
        "selective": (recompute == 1).astype(np.float64),
        "full": (recompute == 2).astype(np.float64),
        "gpipe": (schedule == 0).astype(np.float64),
        "zero_bubble": (schedule == 2).astype(np.float64),
    }


def only(job: Job, columns: Columns, fixed: Sequence[str]) -> Columns:
    """The rows that have each `DIAL=VALUE`. UsageError: no such dial; InputError: no valid layout has it."""
    everything = columns
    wanted_before: dict[str, str] = {}
    for text in fixed:
        name, _, value = text.partition("=")
        dial = _SHORT.get(name, name)
        if dial not in DIALS or not value:
            raise UsageError(f"--fix must be DIAL=VALUE, but is `{text}`", hint=_dial_hint(name))
        names = {"recompute": RECOMPUTE, "schedule": SCHEDULES}.get(dial)
        known = dict(zip(names, range(len(names)), strict=True)) if names else _SWITCH if dial in _SWITCHES else None
        wanted = known.get(value) if known is not None else _whole(value)
        if wanted is None:
            kind = " or ".join(names) if names else "on or off" if dial in _SWITCHES else "a whole number"
            raise UsageError(f"--fix {dial} must be {kind}, but is `{value}`")
        if wanted_before.setdefault(dial, text) != text:
            raise UsageError(f"--fix takes one value of a dial, but got `{wanted_before[dial]}` and `{text}`")
        keep = columns[dial] == wanted
        if not keep.any():
            if (everything[dial] == wanted).any():
                others = ", ".join(each for each in fixed if each != text)
                raise InputError(f"no valid layout has {text} together with {others}", hint="leave one of them out")
            raise _not_valid(job, columns, dial, int(wanted), names)
        columns = {each: values[keep] for each, values in columns.items()}
    return columns


def _dial_hint(name: str) -> str:
    close = difflib.get_close_matches(name, [*DIALS, *_SHORT], n=1)
    nearest = f"the nearest is `{close[0]}`; " if close else ""
    return f"{nearest}dials: {', '.join(DIALS)}; for example: --fix tp=8"


_SWITCHES = ("sp", "offload")
_SWITCH = {"on": 1, "1": 1, "yes": 1, "true": 1, "off": 0, "0": 0, "no": 0, "false": 0}
_SHORT = {"mbs": "micro_batch", "micro-batch": "micro_batch", "sequence_parallel": "sp"}


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _not_valid(job: Job, columns: Columns, dial: str, wanted: int, names: Sequence[str] | None) -> InputError:
    possible = sorted({int(value) for value in columns[dial]})
    if names:
        return InputError(
            f"no valid layout has {dial} {names[wanted]}",
            hint=f"possible with what else is fixed: {', '.join(names[value] for value in possible)}",
        )
    workload = job.workload
    rules = {
        "tp": f"tp must divide {workload.num_heads} heads, a hidden width of {workload.hidden} and the number of GPUs",
        "pp": f"pp must split {workload.num_layers} layers and divide the number of GPUs",
        "vpp": f"pp * vpp must divide {workload.num_layers} layers, and pp the number of micro-batches",
        "cp": f"2 * cp * tp must divide sequences of {job.seq} tokens, and cp the number of GPUs",
        "ep": f"ep must divide {workload.num_experts} experts and the GPUs of a pipeline stage",
        "sp": "sequence parallelism needs tp above 1",
        "zero": "ZeRO 2 needs one micro-batch a step and no pipeline, and ZeRO at all more than one replica",
        "shard": f"shards are over all replicas (0), or over those in an NVLink domain of {job.cluster.nvlink_domain}",
        "micro_batch": f"dp * micro_batch must divide a global batch of {job.global_batch}",
    }
    nearest = min(possible, key=lambda value: abs(value - wanted))
    return InputError(
        f"{rules.get(dial, f'no valid layout has {dial}')}, but got {dial} = {wanted} on {job.cluster.num_gpus} GPUs",
        hint=f"the nearest that works is {dial} = {nearest}",
    )
