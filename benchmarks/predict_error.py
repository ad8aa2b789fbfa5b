"""What `predict/` says beforehand against what was measured, for the few pairs of which both are known.

    python benchmarks/predict_error.py [--measured FOLDER] [--fresh FOLDER] [--cpu FOLDER] [--reference]

`measured` pairs were run for this: one H200 of a machine with 32 cores, a GPT-style model in one process, each setting
three times in turn, 20 steps each after 6 of warm-up; the medians count. The traces of the baselines are from another
machine of the same kind. MEASURED has them and `one.json`.
`labelled` is a public before and after of one script. `same_model` pairs are two runs of one
training script with and without a cause that was put there; `inferred` ones take as the time afterwards a run that has
another, known extra cost, less that cost; `by_proxy` takes the measured ratio of another script of the same size.
FOLDER holds the project's fresh two-GPU traces, which are too many to be kept; without it their pairs are left out.
`cpu` pairs are of `cpu_pairs.py`: small jobs on two shared cores, whose step times spread by a third and more.

Predictions are uncalibrated. Intervals are evaluated as they are replayed, and scaled as `predict/` scales them, each
job's by what the other jobs say (leave one job out), so that no pair is behind its own interval. Learning from use is
evaluated on the same pairs: each job's errors when its own pairs are not known, those of the other jobs are, and when
its own are. `--reference` writes the pairs to `predict/reference.jsonl`, from which the width of intervals is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from flatout.change.candidates import candidates
from flatout.change.catalogue import all_changes
from flatout.change.collectives import with_collectives
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.predict.calibrate import REFERENCE, PredictionCalibration, calibrate
from flatout.predict.predict import predict_together, situation_of
from flatout.records.change import JobFacts
from flatout.records.prediction import NoPrediction, PredictionRecord

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
# A step of the two-GPU job without a fault: `g_straggler_small` has 6 ms of matrix products more, 45.08 ms in all.
HEALTHY_S = 45.08e-3 - 6e-3
PINNED_BYTES_PER_S = 50e9  # of the host of those traces, over PCIe 5 x16


def pairs(shared: Path, fresh: Path | None) -> list[dict[str, Any]]:
    gpt = {"num_ranks": 2, "ranks_per_host": 2, "device": "cuda", "cores_allowed": 32.0, "wrapper": "ddp"}
    labelled = {
        "name": "kineto_resnet50",
        "kind": "labelled",
        "path": shared / "public_traces" / "kineto_resnet50",
        "only": "num_workers_0*",
        "facts": {"device": "cuda", "loader_workers": 0, "cores_allowed": 8.0},
        "changes": ["dataloader-workers=4"],
        "before_s": 0.1774,
        "after_s": 0.1267,
    }
    churn = {
        "name": "alloc_churn",
        "kind": "inferred",
        "path": shared / "traces" / "alloc_churn.tar.xz",
        "facts": gpt,
        "changes": ["keep-cache"],
        "before_s": 43.56e-3,
        "after_s": HEALTHY_S,
    }
    starved = {
        "name": "data_starved",
        "kind": "inferred",
        "path": shared / "traces" / "data_starved.tar.xz",
        "facts": {**gpt, "num_ranks": 4, "ranks_per_host": 4, "cores_allowed": 64.0, "loader_workers": 0},
        "changes": ["dataloader-workers=15"],
        "before_s": 158.03e-3,
        "after_s": 92.76e-3 - 50e-3,  # straggler: rank 2 has 50 ms more than the others
    }
    if fresh is None:
        return [labelled, churn, starved]
    socket = {**gpt, "transport": "socket", "backend": "nccl"}
    return [
        labelled,
        churn,
        starved,
        {
            "name": "g_pageable",
            "kind": "inferred",
            "path": fresh / "g_pageable",
            "facts": gpt,
            "changes": ["dataloader-pin-memory"],
            "before_s": 91.43e-3,
            "after_s": HEALTHY_S + 192 * 2**20 / PINNED_BYTES_PER_S,
        },
        {
            "name": "g_accum",
            "kind": "same_model",
            "path": fresh / "g_accum",
            "facts": {**socket, "passes_per_step": 2},
            "changes": ["ddp-no-sync=2"],
            "before_s": 322.25e-3,
            "after_s": 186.35e-3,  # g_sockets: as many samples a step in one pass
        },
        {
            "name": "g_sockets",
            "kind": "by_proxy",
            "path": fresh / "g_sockets",
            "facts": socket,
            "changes": ["nccl-sockets=2x2+8", "ddp-bucket=100"],
            "before_s": 186.35e-3,
            "after_s": 186.35e-3 * 59 / 184,  # nanoGPT on two H200 over the same sockets: 184 to 59 ms
        },
        {
            "name": "g_starved",
            "kind": "inferred",
            "path": fresh / "g_starved",
            "facts": {**gpt, "loader_workers": 0},
            "changes": ["dataloader-workers=15"],
            "before_s": 94.1e-3,
            "after_s": HEALTHY_S,
        },
        {
            "name": "g_starved_one",
            "kind": "inferred",
            "path": fresh / "g_starved_one",
            "facts": {**gpt, "loader_workers": 1},
            "changes": ["dataloader-workers=15"],
            "before_s": 98.2e-3,
            "after_s": HEALTHY_S,
        },
    ]


def measured_pairs(folder: Path) -> list[dict[str, Any]]:
    """Each setting that was measured beside its baseline, where the baseline has a trace."""
    found = []
    data = json.loads((folder / "one.json").read_text())
    for name, arms in data["step_s"].items():
        if not (folder / name).is_dir():
            continue
        settings = data["jobs"][name][0]
        facts = {
            "num_ranks": 1,
            "ranks_per_host": 1,
            "device": "cuda",
            "cores_allowed": 32.0,
            "loader_workers": settings.get("w", 4),
            "optimizer": "AdamW",
            "optimizer_is_fused": settings.get("fu", True),
            "optimizer_is_foreach": settings.get("fe"),
        }
        found += [
            {
                "name": name,
                "kind": "measured",
                "path": folder / name,
                "facts": facts,
                "changes": [arm],
                "before_s": statistics.median(arms["base"]),
                "after_s": statistics.median(times),
                "ratios": [base / time for base, time in zip(arms["base"], times, strict=True)],
            }
            for arm, times in arms.items()
            if arm != "base"
        ]
    return found


def cpu_pairs(folder: Path) -> list[dict[str, Any]]:
    """What `cpu_pairs.py` left there."""
    found = []
    for name, job in json.loads((folder / "cpu.json").read_text()).items():
        settings, times = job["settings"], job["step_s"]
        facts = {
            "num_ranks": job["ranks"],
            "ranks_per_host": job["ranks"],
            "device": "cpu",
            "backend": "gloo",
            "cores_allowed": 2.0,
            "loader_workers": settings.get("workers", 0),
            "passes_per_step": settings.get("accum", 1),
            "threads_per_rank": 1,
            "wrapper": "ddp" if job["ranks"] > 1 else None,
        }
        before_s = statistics.median(times["base"])
        ratios = {
            arm: [base / time for base, time in zip(times["base"], times[arm], strict=True)] for arm in job["arms"]
        }
        found += [
            {
                "name": name,
                "kind": "cpu",
                "path": folder / name,
                "facts": facts,
                "changes": [arm],
                "before_s": before_s,
                "after_s": before_s / statistics.median(ratios[arm]),
                "ratios": ratios[arm],
            }
            for arm in job["arms"]
        ]
    return found


def outcome(pair: dict[str, Any]) -> dict[str, Any]:
    path = pair["path"]
    paths = sorted(path.glob(pair["only"])) if "only" in pair else [path]
    done = diagnose_paths(paths, with_tracks=True)
    facts = with_collectives(JobFacts(**pair["facts"]), done.job)
    start = time.perf_counter()
    situation = situation_of(done.job, facts, pair["before_s"])
    assert not isinstance(situation, NoPrediction), situation.reason
    by_name = {change.name: change for change in _wide(facts)}
    bounds = {change.name: change.predicted_speedup for change in candidates(done.diagnosis, facts, "semantic")}
    bound = bounds.get(pair["changes"][0]) if len(pair["changes"]) == 1 else None
    plain = PredictionCalibration()
    prediction = predict_together(situation, [by_name[name] for name in pair["changes"]], plain, bound=bound)
    took_s = time.perf_counter() - start
    measured = pair["before_s"] / pair["after_s"]
    row: dict[str, Any] = {
        "pair": pair["name"],
        "kind": pair["kind"],
        "changes": pair["changes"],
        "traced_step_ms": round(situation.seen_step_s * 1e3, 2),
        "before_ms": round(pair["before_s"] * 1e3, 2),
        "after_ms": round(pair["after_s"] * 1e3, 2),
        "measured_speedup": round(measured, 3),
        "seconds": round(took_s, 2),
    }
    if "ratios" in pair:
        row["measured_from_to"] = [round(min(pair["ratios"]), 3), round(max(pair["ratios"]), 3)]
    if isinstance(prediction, NoPrediction):
        return {**row, "predicted_speedup": None, "reason": prediction.reason}
    return {
        **row,
        "family": prediction.family,
        "bound": round(prediction.bound, 3) if prediction.bound is not None else None,
        "predicted_speedup": round(prediction.speedup, 3),
        "interval": [round(prediction.low, 3), round(prediction.high, 3)],
        "error": round(prediction.speedup / measured - 1, 3),
        "is_in_interval": prediction.low <= measured <= prediction.high,
    }


def _wide(facts: JobFacts) -> list[Any]:
    """The catalogue's changes for these facts, and those worker counts that the pairs were measured with."""
    from flatout.change.dataloader import WORKERS
    from flatout.change.setting import setting

    found = [*all_changes(facts)]
    found += [
        setting(WORKERS, n, patch="dataloader", num_workers=n) for n in (1, 2, 3, 4, 7, 15) if n != facts.loader_workers
    ]
    return found


def as_outcome(row: dict[str, Any]) -> PredictionRecord:
    """A job's pairs are one tuning."""
    low, high = row["interval"]
    return PredictionRecord(
        family=row["family"],
        change="+".join(row["changes"]),
        predicted=row["predicted_speedup"],
        measured=row["measured_speedup"],
        machine=row["kind"],
        date=row["pair"],
        low=low,
        high=high,
    )


def held_out(outcomes: list[PredictionRecord], reference: list[PredictionRecord]) -> dict[str, Any]:
    """Coverage of pairs that are not behind the width."""
    width = calibrate((), reference)
    found = [
        (width.of(each.family, each.change, (each.predicted, each.low or 0.0, each.high or 0.0)), each)
        for each in outcomes
    ]
    errors = [abs(each.predicted / each.measured - 1) for each in outcomes]
    return {
        "num_pairs": len(found),
        "num_in_interval": sum(said.low <= each.measured <= said.high for said, each in found),
        "median_absolute_error": round(statistics.median(errors), 3) if errors else None,
    }


def leave_one_job_out(outcomes: list[PredictionRecord]) -> dict[str, Any]:
    """Coverage of intervals, and errors after learning, each of jobs that nothing was learned of."""
    inside, widths, plain, of_others, again = [], [], [], [], []
    for job in dict.fromkeys(each.date for each in outcomes):
        mine = [each for each in outcomes if each.date == job]
        others = [each for each in outcomes if each.date != job]
        width_only, learned = calibrate((), others), calibrate(others, ())
        for each in mine:
            model = (each.predicted, each.low or 0.0, each.high or 0.0)
            found = width_only.of(each.family, each.change, model)
            inside.append(found.low <= each.measured <= found.high)
            widths.append(found.high / found.low)
            plain.append(abs(each.predicted / each.measured - 1))
            of_others.append(abs(learned.of(each.family, each.change, model).speedup / each.measured - 1))
            knows = calibrate(outcomes, ()).of(each.family, each.change, model)
            again.append(abs(knows.speedup / each.measured - 1))
    return {
        "nominal": 0.9,
        "num_pairs": len(inside),
        "num_in_interval": sum(inside),
        "median_width_high_over_low": round(statistics.median(widths), 2),
        "median_absolute_error_uncorrected": round(statistics.median(plain), 3),
        "median_absolute_error_learned_from_other_jobs": round(statistics.median(of_others), 3),
        "median_absolute_error_same_job_again": round(statistics.median(again), 3),
        "mean_absolute_error_uncorrected": round(statistics.mean(plain), 3),
        "mean_absolute_error_learned_from_other_jobs": round(statistics.mean(of_others), 3),
        "mean_absolute_error_same_job_again": round(statistics.mean(again), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--fresh", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--cpu", type=Path)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "predict_error.json")
    options = parser.parse_args()
    every = [*(measured_pairs(options.measured) if options.measured else []), *pairs(options.shared, options.fresh)]
    every += cpu_pairs(options.cpu) if options.cpu else []
    rows = [outcome(pair) for pair in every]
    outcomes = [as_outcome(row) for row in rows if row["predicted_speedup"] is not None]
    errors = [abs(row["error"]) for row in rows if row["predicted_speedup"] is not None]
    result = {
        "what": "predicted over measured speedup, uncalibrated, with the findings' bound; models of pinned memory, of"
        " gradients set to zero, of the allocator and of the recorder's cost were changed after seeing the pairs",
        "median_absolute_error": round(statistics.median(errors), 3),
        "median_absolute_error_of_measured": round(
            statistics.median([abs(r["error"]) for r in rows if r["kind"] == "measured" and "error" in r] or [0.0]), 3
        ),
        "num_pairs": len(errors),
        "num_in_replayed_interval": sum(bool(row.get("is_in_interval")) for row in rows),
        "leave_one_job_out": leave_one_job_out(outcomes),
        "leave_one_job_out_without_cpu": leave_one_job_out([each for each in outcomes if each.machine != "cpu"]),
        "cpu_held_out": held_out(
            [each for each in outcomes if each.machine == "cpu"], [each for each in outcomes if each.machine != "cpu"]
        ),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    if options.reference:
        kept = [msgspec.json.encode(each) for each in outcomes if each.machine != "cpu"]
        REFERENCE.write_bytes(b"\n".join(kept) + b"\n")
    for row in rows:
        print(f"{row['pair']:16} {row['kind']:11} {'+'.join(row['changes']):36}", end=" ")
        print(f"measured {row['measured_speedup']:.2f} predicted {row['predicted_speedup']}", row.get("interval", ""))
    print(f"median absolute error {result['median_absolute_error']:.1%} of {len(errors)} pairs")
    print(json.dumps({name: value for name, value in result.items() if name.startswith(("leave", "cpu"))}, indent=1))


if __name__ == "__main__":
    main()
