"""Predict runs that no constant was fitted to, one row each, and say how wrong the predictions are by kind.

    python benchmarks/plan_unseen.py benchmarks/plan_unseen.csv [--out FILE]

`plan_unseen.csv` holds runs that were collected after the model was made, of sources that `constants.json` does not
know: mixtures of experts on H100, GB200 and B200 (NVIDIA/dgxc-benchmarking, release 25.05), Megatron-LM and DeepSpeed
on A100, A800, H800 and H100 (FlagOpen/FlagPerf), and consumer cards (IST-DASLab/llmq). Rows whose GPU or shape is not
understood are counted, not predicted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.plan.calibrate import Z_90, predict_logs
from flatout.plan.fits import SAFE, MemoryCalibration, out_of_memory_probability
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import MeasuredRun, as_inputs, read_runs
from flatout.plan.shipped import shipped

NEW_GPUS = 1e15  # dense 16-bit operations a second of Blackwell, and of nothing before
KINDS: dict[str, Callable[[MeasuredRun], bool]] = {
    "all": lambda run: True,
    "experts": lambda run: run.columns["experts"] > 0,
    "experts on Blackwell": lambda run: run.columns["experts"] > 0 and run.columns["half_peak"] > NEW_GPUS,
    "dense": lambda run: run.columns["experts"] == 0,
}


def predicted(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Return the prediction of each run beside what was measured."""
    inputs = as_inputs(runs)
    logs, deviations = predict_logs(inputs, shipped())
    peaks = memory(inputs, MemoryConstants()).total
    risks = out_of_memory_probability(inputs, MemoryCalibration())
    rows = []
    for run, log, deviation, peak, risk in zip(runs, logs, deviations, peaks, risks, strict=True):
        measured_s = run.step_time_s
        is_inside = measured_s is not None and abs(log - np.log(measured_s)) <= Z_90 * deviation
        rows.append(
            {
                "source": run.source,
                "layers": int(run.columns["layers"]),
                "experts": int(run.columns["experts"]),
                "gpus": int(run.columns["gpus"]),
                "layout": [int(run.columns[name]) for name in ("tp", "pp", "cp", "ep", "etp", "micro_batch")],
                "measured_s": measured_s,
                "predicted_s": round(float(np.exp(log)), 4),
                "error": None if measured_s is None else round(float(np.exp(log)) / measured_s - 1.0, 4),
                "is_inside_90": None if measured_s is None else bool(is_inside),
                "ran_out": run.ran_out_of_memory,
                "peak_gib": run.peak_memory_bytes and run.peak_memory_bytes / 2**30,
                "predicted_gib": round(float(peak) / 2**30, 1),
                "out_of_memory_probability": round(float(risk), 3),
            }
        )
    return rows


def errors(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of some rows."""
    timed = [row for row in rows if row["measured_s"] is not None]
    with_peak = [row for row in rows if row["peak_gib"]]
    ran = [row for row in rows if not row["ran_out"]]
    missed = [row for row in rows if row["ran_out"] and row["out_of_memory_probability"] < SAFE]
    return {
        "rows": len(rows),
        "mape": mean(abs(row["error"]) for row in timed),
        "bias": mean(row["error"] for row in timed),
        "inside_90": mean(row["is_inside_90"] for row in timed),
        "memory_mape": mean(abs(row["predicted_gib"] / row["peak_gib"] - 1.0) for row in with_peak),
        "called_unsafe": mean(row["out_of_memory_probability"] >= SAFE for row in ran),
        "out_of_memory_called_safe": len(missed),
    }


def mean(values: Any) -> float | None:
    known = list(values)
    return round(float(np.mean(known)), 4) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs, rows_read = read_runs(arguments.runs)
    rows = predicted(runs)
    kinds = dict(KINDS)
    for source in dict.fromkeys(run.source for run in runs):
        kinds[source] = lambda run, source=source: run.source == source  # type: ignore[misc]
    by_kind = {
        name: errors([row for run, row in zip(runs, rows, strict=True) if belongs(run)])
        for name, belongs in kinds.items()
    }
    for name, result in by_kind.items():
        print(f"{name}: {result}")
    print(f"{rows_read - len(runs)} of {rows_read} rows are not understood")
    if arguments.out:
        result = {"rows_read": rows_read, "rows_used": len(runs), "kinds": by_kind, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
