"""Every valid layout of a workload on a cluster, as columns.

The rules, and who sets them (Megatron-LM's arguments.py and the papers named in the other files): degrees multiply to
the number of GPUs; TP divides the heads, the hidden width and the feed-forward widths, and key-value heads or the
other way round; the pipeline's chunks divide the layers, or without interleaving leave each stage at least one;
interleaving needs the micro-batches to be a multiple of the stages; CP divides the sequence in twice as many pieces;
EP divides the experts and the ranks of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatout.errors import InputError, UsageError
from flatout.plan.case import RECOMPUTE, SCHEDULES
from flatout.records.plan import Cluster, Layout, Workload

Columns = dict[str, npt.NDArray[np.float64]]
DIALS = ("tp", "sp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "recompute", "schedule")
# Beyond these no published run goes, and a search would list little else.
MOST_CHUNKS, MOST_CP, MOST_TP, MOST_MICRO_BATCH = 64, 64, 64, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What stays the same in a search: sequences a step, and tokens of one."""

    workload: Workload
    cluster: Cluster
    global_batch: int
    seq: int


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
        zeros = [0.0, 1.0, 2.0, 3.0] if dp * cp > 1 else [0.0]
        if pp > 1 and dp * cp > 1:
            zeros = [0.0, 1.0, 3.0]  # gradients stay whole while micro-batches of a pipeline add to them
        micro = np.array(divisors(replica, MOST_MICRO_BATCH), dtype=np.float64)
        grid = np.meshgrid(
            micro, chunks, zeros, [0.0, 1.0] if tp > 1 else [0.0], np.arange(3.0), np.arange(3.0), indexing="ij"
        )
        micro_batch, vpp, zero, sp, recompute, schedule = (axis.ravel() for axis in grid)
        num_micro = replica / micro_batch
        plain = (schedule == 1) | ((pp > 1) & (vpp == 1))  # one stage has one schedule, chunks have theirs
        keep = plain & ((vpp == 1) | (num_micro % pp == 0)) & ((zero != 2) | (num_micro == 1))
        count = int(keep.sum())
        fixed = [np.full(count, value, dtype=np.float64) for value in (tp, pp, cp, ep, dp)]
        rows.append(
            np.stack([*fixed, *(axis[keep] for axis in (sp, vpp, zero, micro_batch, num_micro, recompute, schedule))])
        )
    names = ("tp", "pp", "cp", "ep", "dp", "sp", "vpp", "zero", "micro_batch", "num_micro", "recompute", "schedule")
    if not rows:
        return {name: np.zeros(0) for name in names}
    return dict(zip(names, np.concatenate(rows, axis=1), strict=True))


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
    for text in fixed:
        name, _, value = text.partition("=")
        dial = _SHORT.get(name, name)
        if dial not in DIALS or not value:
            raise UsageError(
                f"--fix must be DIAL=VALUE, but is `{text}`", hint=f"dials: {', '.join(DIALS)}; for example: --fix tp=8"
            )
        names = {"recompute": RECOMPUTE, "schedule": SCHEDULES}.get(dial)
        known = dict(zip(names, range(len(names)), strict=True)) if names else None
        wanted = known.get(value) if known is not None else _whole(value)
        if wanted is None:
            raise UsageError(
                f"--fix {dial} must be {' or '.join(names) if names else 'a whole number'}, but is `{value}`"
            )
        keep = columns[dial] == wanted
        if not keep.any():
            raise _not_valid(job, columns, dial, int(wanted), names)
        columns = {each: values[keep] for each, values in columns.items()}
    return columns


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
        "micro_batch": f"dp * micro_batch must divide a global batch of {job.global_batch}",
    }
    nearest = min(possible, key=lambda value: abs(value - wanted))
    return InputError(
        f"{rules.get(dial, f'no valid layout has {dial}')}, but got {dial} = {wanted} on {job.cluster.num_gpus} GPUs",
        hint=f"the nearest that works is {dial} = {nearest}",
    )
