"""Tunings made by hand, as `flatout tune` would make them, for the reports to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tests.report.builder import HOSTILE

from flatout.records.change import Argument, Change, ChangeSet, Knob, Patch
from flatout.records.prediction import Prediction
from flatout.records.tuning import Bound, TriedSet, TunedChange, TuneResult, Tuning, TuningEnd
from flatout.records.verdict import NoiseFloor, Objective, Verdict

COMMAND = ("torchrun", "--standalone", "--nproc-per-node", "4", "train.py", "--out", "{trial_dir}")
OUT_OF_TIME = TuningEnd(ended_by="time_budget", limit=600)


def change(name: str, *, safety: Any = "exact", **fields: Any) -> Change:
    knob_name, _, value = name.partition("=")
    knob = Knob(
        name=knob_name,
        family=fields.pop("family", "ddp"),
        summary=fields.pop("summary", f"turn {knob_name.replace('-', ' ')}"),
        safety=safety,
        doc="",
        source="",
    )
    if not fields:
        fields = {"patch": Patch(name=knob_name, parameters={"value": value} if value else {})}
    return Change(name=name, knob=knob, value=value, **fields)


def change_set(changes: Sequence[Change]) -> ChangeSet:
    return ChangeSet(changes=tuple(changes))


def verdict(name: Any, speedup: float | None, low: float = 0.0, high: float = 0.0, **fields: Any) -> Verdict:
    reasons: Mapping[str, str] = {
        "better": "the interval excludes 1, and the difference is above 1.0 %",
        "worse": "the interval excludes 1, and the difference is above 1.0 %",
        "equivalent": "any difference is within 1.0 %",
        "undecided": "the interval includes 1, and is too wide to show that the arms are equivalent",
    }
    num_pairs = fields.get("num_pairs", 6)
    defaults: dict[str, Any] = {
        "objective": "s_per_sample",
        "mean_speedup": speedup,
        "interval": (low, high) if low else None,
        "best_case": high * 0.99 if low else None,
        "error_rate": 0.05,
        "min_effect": 0.01,
        "num_pairs": num_pairs,
        "num_void": 0,
        "void_reasons": (),
        "order": " ".join(("AB", "BA")[pair % 2] for pair in range(num_pairs)),
        "next_analysis": None,
        "reason": reasons[name],
    }
    return Verdict(verdict=name, speedup=speedup, **(defaults | fields))


def prediction(name: str, speedup: float, low: float, high: float) -> Prediction:
    return Prediction(change=name, family="ddp", speedup=speedup, low=low, high=high, how="The trace was replayed.")


def tried(name: str, outcome: Any, **fields: Any) -> TriedSet:
    defaults: dict[str, Any] = {
        "changes": tuple(name.split(" + ")),
        "safety": "exact",
        "round": 1,
        "bound": None,
        "reason": "",
    }
    return TriedSet(name=name, outcome=outcome, **(defaults | fields))


def floor(objective: Objective = "s_per_sample", **fields: Any) -> NoiseFloor:
    defaults: dict[str, Any] = {
        "num_trials": 3,
        "num_steps": 30,
        "between_sd": 0.004,
        "step_sd": 0.02,
        "step_correlation_time": 2.0,
        "drift_per_trial": 0.0003,
        "spike_share": 0.012,
        "step_s": 0.254,
        "start_s": 8.4,
        "degrees_of_freedom": 2,
    }
    return NoiseFloor(objective=objective, **(defaults | fields))


def tuning(
    changes: Sequence[Change] = (),
    final: Verdict | None = None,
    *,
    each: Sequence[TunedChange] | None = None,
    command: Sequence[str] = COMMAND,
    **fields: Any,
) -> TuneResult:
    defaults: dict[str, Any] = {
        "objective": "s_per_sample",
        "allowed_safety": "exact",
        "tried": (),
        "bounds": (),
        "floor": floor(),
        "num_steps": 40,
        "baseline_step_s": 0.254,
        "tuned_step_s": 0.079 if changes else 0.254,
        "baseline_peak_memory_bytes": 33_200_000_000,
        "tuned_peak_memory_bytes": 33_900_000_000 if changes else 33_200_000_000,
        "num_trials": 34,
        "num_resumed": 0,
        "took_s": 598.0,
        "end": TuningEnd(ended_by="no_candidates"),
    }
    return TuneResult(
        tuning=Tuning(
            command=tuple(command),
            changes=change_set(changes),
            each=tuple(each) if each is not None else tuple(TunedChange(change=one) for one in changes),
            verdict=final,
            num_trials=34,
            machine={"device": "NVIDIA H200", "num_ranks": "4", "num_hosts": "1"},
            versions={"torch": "2.11.0", "nccl": "2.28.9"},
            date="2026-11-28T04:46:16+00:00",
        ),
        **(defaults | fields),
    )


def corrected() -> TuneResult:
    """A small gain amid noise, whose quoted gain is below the mean of its pairs."""
    one = change("ddp-bucket=50", summary="send gradients in larger buckets")
    found = verdict("better", 1.031, 1.012, 1.096, mean_speedup=1.049, num_pairs=20)
    way = tried(one.name, "adopted", screened=1.06, verdict=found, prediction=prediction(one.name, 1.06, 1.0, 1.12))
    return tuning((one,), found, each=(TunedChange(change=one, verdict=found),), tried=(way,))


def better() -> TuneResult:
    """Two rounds: a change alone, then two together; beside them all that can happen to a candidate."""
    sockets = change(
        "nccl-sockets=2x2x8",
        family="nccl",
        summary="move data over more sockets, threads and channels",
        environment={"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2", "NCCL_MIN_NCHANNELS": "8"},
    )
    bucket = change("ddp-bucket-mb=100", summary="send gradients in larger buckets")
    fused = change("optimizer-fused", family="optimizer", summary="update all parameters in one kernel")
    alone = verdict("better", 2.71, 2.66, 2.76, num_pairs=4)
    return tuning(
        (sockets, bucket, fused),
        verdict("better", 3.21, 3.13, 3.29, num_void=1, void_reasons=("another process kept 3.1 cores busy",)),
        each=(
            TunedChange(change=sockets, verdict=alone),
            TunedChange(change=bucket),
            TunedChange(change=fused),
        ),
        tried=(
            tried("nccl-sockets=2x2x8", "adopted", bound=6.8, screened=2.69, verdict=alone,
                  prediction=prediction("nccl-sockets=2x2x8", 2.9, 2.2, 3.6)),
            tried("nccl-protocol=LL128", "unsafe", bound=6.8, screened=2.95, verdict=verdict("better", 3.4, 3.2, 3.6),
                  reason="the first 5 losses differ by 3.1e-01 of their size, and float noise is at most 2.0e-03"),
            tried("cpu-binding", "not applied", reason="numactl is not installed"),
            tried("ddp-static-graph", "failed", reason="RuntimeError: Expected to have finished reduction"),
            tried("ddp-bucket-mb=1000", "out of memory", bound=6.8, reason="rank 2 ran out of GPU memory"),
            tried("ddp-bucket-mb=100 + optimizer-fused", "adopted", round=2, screened=1.2,
                  verdict=verdict("better", 1.18, 1.15, 1.21)),
            tried("ddp-bucket-view", "not confirmed", round=3, bound=1.2, screened=1.03,
                  prediction=prediction("ddp-bucket-view", 1.05, 1.0, 1.1),
                  verdict=verdict("equivalent", 1.002, 0.995, 1.009, num_pairs=12),
                  reason="any difference is within 1.0 %"),
            tried("cudnn-benchmark", "not better", round=3, screened=1.0, reason="1.00x in its own trial"),
        ),
        bounds=(
            Bound(finding="exposed-communication", speedup=6.8),
            Bound(finding="host-bound", speedup=1.08),
        ),
        num_trials=61,
        num_resumed=12,
        notes=("torch.save was diverted in each trial: 3 files a trial, deleted at its end.",),
    )  # fmt: skip


def nothing() -> TuneResult:
    """A/A: an already tuned job."""
    return tuning(
        tried=(
            tried("optimizer-fused", "not better", screened=1.004, reason="1.00x in its own trial"),
            tried("ddp-bucket-view", "not confirmed", screened=1.024, reason="any difference is within 1.0 %",
                  verdict=verdict("equivalent", 1.001, 0.994, 1.008)),
        ),
    )  # fmt: skip


def unsafe() -> TuneResult:
    """The only candidate is fast and wrong."""
    return tuning(
        tried=(
            tried("nccl-protocol=LL128", "unsafe", screened=7.77, verdict=verdict("better", 8.88, 8.8, 8.96),
                  prediction=prediction("nccl-protocol=LL128", 8.0, 7.0, 9.0),
                  reason="the mean loss differs by 31 %, and 0.5 % is allowed"),
        ),
    )  # fmt: skip


def undecided() -> TuneResult:
    """The final pairs did not decide; before the first look there is no interval."""
    one = change("dataloader-workers=3", family="dataloader")
    alone = verdict("better", 1.06, 1.02, 1.10, objective="step_s")
    return tuning(
        (one,),
        verdict(
            "undecided",
            1.04,
            num_pairs=3,
            objective="step_s",
            reason="3 pairs count, and the first interim analysis is at 4",
        ),
        each=(TunedChange(change=one, verdict=alone),),
        objective="step_s",
        tried=(tried(one.name, "adopted", verdict=alone, bound=1.3, prediction=prediction(one.name, 1.1, 1.0, 1.2)),),
        floor=floor("step_s", spike_share=0.0),
        tuned_step_s=None,
        end=OUT_OF_TIME,
    )


def out_of_budget() -> TuneResult:
    """It ended before anything was known."""
    return tuning(
        floor=None,
        baseline_step_s=None,
        tuned_step_s=None,
        baseline_peak_memory_bytes=None,
        tuned_peak_memory_bytes=None,
        num_trials=2,
        took_s=31.4,
        end=TuningEnd(ended_by="trial_budget", limit=2),
    )


def memory() -> TuneResult:
    """For peak memory, with rounding allowed."""
    bf16 = change("autocast=bf16", safety="rounding", family="kernels", summary="compute in bf16 where it is safe")
    found = verdict("better", 1.786, 1.780, 1.792, objective="peak_memory_bytes")
    return tuning(
        (bf16,),
        found,
        each=(TunedChange(change=bf16, verdict=found),),
        objective="peak_memory_bytes",
        allowed_safety="rounding",
        tried=(
            tried(
                bf16.name,
                "adopted",
                safety="rounding",
                verdict=found,
                prediction=prediction(bf16.name, 1.2, 1.1, 1.4),
            ),
        ),
        floor=floor("peak_memory_bytes", between_sd=1e-5, step_sd=0.0, spike_share=0.0),
        tuned_step_s=0.239,
        tuned_peak_memory_bytes=18_588_000_000,
    )


def worse() -> TuneResult:
    """Better alone, worse together."""
    one, two = change("omp-threads=8"), change("batch=32", argument=Argument(words=(("--batch-size=32",),)))
    return tuning(
        (one, two),
        verdict("worse", 0.92, 0.90, 0.94),
        tuned_step_s=0.276,
    )


def many() -> TuneResult:
    """Sixty candidates with long names and reasons."""
    outcomes = ("not better", "unsafe", "out of memory", "failed", "not confirmed")
    return tuning(
        tried=tuple(
            tried(f"a-knob-with-a-rather-long-name-{number}={'x' * (number % 40)}", outcomes[number % 5],
                  reason="a reason that takes more than the width of its column and is broken into lines " * 2,
                  safety=("exact", "rounding", "semantic")[number % 3], bound=1.1 + number / 10,
                  screened=1.0,
                  verdict=verdict("undecided", 1.01, 0.97, 1.0 + number / 20) if number % 5 == 4 else None)
            for number in range(60)
        ),
        allowed_safety="semantic",
        notes=tuple(f"note {number}" for number in range(30)),
        bounds=tuple(Bound(finding=f"finding-{number}", speedup=1.02 + number) for number in range(12)),
    )  # fmt: skip


def hostile() -> TuneResult:
    """Texts from the job and the machine that are no honest ones."""
    name = f"knob={HOSTILE}"
    one = change(name, argument=Argument(words=((HOSTILE,),)), summary=HOSTILE)
    result = tuning(
        (one,),
        verdict("better", 1.5, 1.4, 1.6, reason=HOSTILE, num_void=2, void_reasons=(HOSTILE,)),
        command=("python", "train.py", HOSTILE, "--api-key", "hunter2"),
        tried=(
            tried(name, "adopted", changes=(name,), reason=HOSTILE),
            tried(name + "2", "failed", changes=(name + "2",), reason=HOSTILE),
        ),
        bounds=(Bound(finding=HOSTILE, speedup=2.0),),
        notes=(HOSTILE, "`code` and `more"),
    )
    machine = {"device": HOSTILE, "num_ranks": HOSTILE}
    return msgspec.structs.replace(result, tuning=msgspec.structs.replace(result.tuning, machine=machine))


ALL: Mapping[str, Callable[[], TuneResult]] = {
    make.__name__: make
    for make in (better, corrected, nothing, unsafe, undecided, out_of_budget, memory, worse, many, hostile)
}
