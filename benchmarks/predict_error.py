"""What `predict/` says beforehand against what was measured, for the few pairs of which both are known.

    python benchmarks/predict_error.py [--measured FOLDER] [--fresh FOLDER] [--out results/predict_error.json]

`measured` pairs were run for this: one H200 of a machine with 32 cores, a GPT-style model in one process, each setting
three times in turn, 20 steps each after 6 of warm-up; the medians count. The traces of the baselines are from another
machine of the same kind. MEASURED has them and `one.json`.
`labelled` is a public before and after of one script. `same_model` pairs are two runs of one
training script with and without a cause that was put there; `inferred` ones take as the time afterwards a run that has
another, known extra cost, less that cost; `by_proxy` takes the measured ratio of another script of the same size.
FOLDER holds the project's fresh two-GPU traces, which are too many to be kept; without it their pairs are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from flatout.change.catalogue import all_changes
from flatout.change.collectives import with_collectives
from flatout.loop import diagnose_paths
from flatout.predict.predict import predict_together, situation_of
from flatout.records.change import JobFacts
from flatout.records.prediction import NoPrediction

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
# A step of the two-GPU job without a fault: `g_straggler_small` has 6 ms of matrix products more, 45.08 ms in all.
HEALTHY_S = 45.08e-3 - 6e-3


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
    if fresh is None:
        return [labelled, churn]
    socket = {**gpt, "transport": "socket", "backend": "nccl"}
    return [
        labelled,
        churn,
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


def outcome(pair: dict[str, Any]) -> dict[str, Any]:
    path = pair["path"]
    paths = sorted(path.glob(pair["only"])) if "only" in pair else [path]
    done = diagnose_paths(paths, with_tracks=True)
    facts = with_collectives(JobFacts(**pair["facts"]), done.job)
    start = time.perf_counter()
    situation = situation_of(done.job, facts, pair["before_s"])
    assert not isinstance(situation, NoPrediction), situation.reason
    by_name = {change.name: change for change in _wide(facts)}
    prediction = predict_together(situation, [by_name[name] for name in pair["changes"]])
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
        setting(WORKERS, n, patch="dataloader", num_workers=n) for n in (1, 3, 4, 7, 15) if n != facts.loader_workers
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--fresh", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "predict_error.json")
    options = parser.parse_args()
    every = [*(measured_pairs(options.measured) if options.measured else []), *pairs(options.shared, options.fresh)]
    rows = [outcome(pair) for pair in every]
    errors = [abs(row["error"]) for row in rows if row["predicted_speedup"] is not None]
    result = {
        "what": "predicted over measured speedup, uncalibrated; the models were written before the measured pairs;"
        " the width of intervals and the rule for loaders that set the pace were chosen after seeing the other six",
        "median_absolute_error": round(statistics.median(errors), 3),
        "median_absolute_error_of_measured": round(
            statistics.median([abs(r["error"]) for r in rows if r["kind"] == "measured" and "error" in r] or [0.0]), 3
        ),
        "num_pairs": len(errors),
        "num_in_interval": sum(bool(row.get("is_in_interval")) for row in rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    for row in rows:
        print(f"{row['pair']:16} {row['kind']:11} {'+'.join(row['changes']):36}", end=" ")
        print(f"measured {row['measured_speedup']:.2f} predicted {row['predicted_speedup']}", row.get("interval", ""))
    print(f"median absolute error {result['median_absolute_error']:.1%} of {len(errors)} pairs")


if __name__ == "__main__":
    main()
