"""Tune twelve jobs on two gloo ranks each, whose truth is known: the time to the verdict, and whether it is true.

    python benchmarks/tune_twelve_jobs.py --out results.json [--source FOLDER] [--only NAME ...]
    git worktree add /tmp/before COMMIT
    python benchmarks/tune_twelve_jobs.py --source /tmp/before/src --out before.json

Each job rests for as long as its arguments say, and one argument is the knob, so the true gain of each value is
arithmetic: it includes an epoch's end at its frequency, but not the 1 to 2 ms of a step that compute and gloo take. The
time to the verdict is that of all trials and profiles until the trial with which the claim was complete. A call with
the same `--out` goes on with the jobs that it lacks, so the twelve can be run in pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OTHER_S = 0.0015  # of a step: compute, gloo, the loader


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    arguments: tuple[str, ...]
    knob: str | None = None
    true_speedup: float = 1.0  # of the best value; 1: nothing to gain


def pause(*seconds: float) -> str:
    """Return the knob that varies how long a step rests."""
    return "pause/exact={" + ",".join(f"{value:g}" for value in seconds) + "}:--pause={}"


def gain(before_s: float, after_s: float, *, boundary_s: float = 0.0, epoch: int = 1) -> float:
    more_s = OTHER_S + boundary_s / epoch
    return (before_s + more_s) / (after_s + more_s)


JOBS = (
    Job("2x", ("--pause=0.04",), pause(0.02), gain(0.04, 0.02)),
    Job("1.3x", ("--pause=0.04",), pause(0.0305), gain(0.04, 0.0305)),
    Job("1.1x", ("--pause=0.04",), pause(0.0362), gain(0.04, 0.0362)),
    Job(
        "short epochs",
        ("--pause=0.06", "--epoch=15", "--boundary=0.6"),
        pause(0.02),
        gain(0.06, 0.02, boundary_s=0.6, epoch=15),
    ),
    Job(
        "long epochs",
        ("--pause=0.03", "--epoch=300", "--boundary=3"),
        pause(0.012),
        gain(0.03, 0.012, boundary_s=3.0, epoch=300),
    ),
    Job("slow steps", ("--pause=0.8",), pause(0.4), gain(0.8, 0.4)),
    Job("tiny steps", ("--pause=0.004",), pause(0.001), gain(0.004, 0.001)),
    Job("noisy, 2x", ("--pause=0.04", "--run-noise=0.1"), pause(0.02), gain(0.04, 0.02)),
    Job("drifting, 1.5x", ("--pause=0.04", "--drift=0.5"), pause(0.0262), gain(0.04, 0.0262)),
    # Eight samples of 4 ms are loaded in the steps themselves; workers load them while the step rests.
    Job("loader that waits", ("--pause=0.005", "--sample-wait=0.004"), None, (0.032 + 0.005) / 0.0085),
    Job(
        "two findings",
        ("--pause=0.03", "--sample-wait=0.004"),
        pause(0.012),
        (0.032 + 0.03 + OTHER_S) / (0.012 + OTHER_S),
    ),
    Job("nothing to gain", ("--pause=0.04",), pause(0.0402, 0.0405), 1.0),
)


def tune(job: Job, source: Path, folder: Path, budget_s: int) -> dict[str, Any]:
    """Tune one job and return what was found, how long it took, and the truth."""
    out = folder / job.name.replace(" ", "-").replace(",", "")
    words = [sys.executable, "-m", "flatout", "tune", "--out", str(out), "--budget", f"{budget_s}s", "--no-history"]
    words += ["--knob", job.knob] if job.knob is not None else []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": "1",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    began_s = time.monotonic()
    done = subprocess.run(
        [*words, "--", *torchrun, str(HERE / "twelve_jobs_job.py"), *job.arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    row: dict[str, Any] = {"job": job.name, "true_speedup": round(job.true_speedup, 3), "code": done.returncode}
    row["wall_s"] = round(time.monotonic() - began_s, 1)
    if not (out / "tuning.json").exists():
        return row | {"error": done.stderr[-2000:]}
    report = json.loads((out / "tuning.json").read_text())
    row |= {name: report[name] for name in ("verdict", "speedup", "interval", "num_trials", "ended_by")}
    row["changes"] = [change["name"] for change in report["changes"]]
    row["verdict_s"] = verdict_s(report, (out / "journal.jsonl").read_text().splitlines())
    row["is_true"] = is_true(job, report)
    row["headline"] = done.stdout.split("\n", 1)[0]
    return row


def verdict_s(report: dict[str, Any], lines: Sequence[str]) -> float | None:
    """Return the seconds of all trials and profiles until the claim was complete; None without a claim."""
    if report["verdict"] != "better":
        return None
    claimed = {change["name"] for change in report["changes"]}
    entries = [json.loads(line) for line in lines]
    trials = [entry["result"] for entry in entries if entry["type"] == "trial"]
    order = report["order"].replace(" ", "")
    num_candidates = order.count("B")
    places = [place for place, trial in enumerate(trials) if set(trial["arm"].split(" + ")) == claimed]
    is_of_pairs = " " in report["order"]
    if is_of_pairs:  # in fresh pairs: the first set that was confirmed, or the final pairs
        adopted = [entry for entry in entries if "pair of" in entry.get("place", "")]
        of_set = [entry["result"] for entry in adopted if claimed <= set(entry["place"].replace(" and", "").split())]
        last = trials.index(of_set[min(len(order), len(of_set)) - 1]) if of_set else places[-1]
    else:
        last = places[num_candidates - 1]
    trials_s = sum(trial["took_s"] or 0.0 for trial in trials[: last + 1])
    profiles_s = entries_before(entries, last)
    return round(trials_s + profiles_s, 1)


def entries_before(entries: Sequence[dict[str, Any]], last: int) -> float:
    """Return the seconds of the profiles that were made before the trial at this place."""
    seconds, num_trials = 0.0, 0
    for entry in entries:
        if entry["type"] == "trial":
            num_trials += 1
            if num_trials > last + 1:
                break
        elif entry["type"] == "profile":
            seconds += entry["took_s"]
    return seconds


def is_true(job: Job, report: dict[str, Any]) -> bool:
    """Whether what is claimed is so: the interval holds the gain of the knob, within 3 %, and no gain is made up."""
    if report["verdict"] != "better":
        return True
    if job.true_speedup == 1.0:
        return False
    low, high = report["interval"]
    has_all = job.name not in ("two findings", "loader that waits")
    return low <= job.true_speedup * 1.03 and (high >= job.true_speedup * 0.97 or not has_all)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=HERE.parent / "src")
    parser.add_argument("--budget", type=int, default=180)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    rows = kept_rows(options.out, options.budget)
    jobs = [job for job in JOBS if job.name not in rows and (not options.only or job.name in options.only)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        running = [pool.submit(tune, job, options.source, Path(folder), options.budget) for job in jobs]
        for done in as_completed(running):
            rows[done.result()["job"]] = done.result()
            in_order = [rows[job.name] for job in JOBS if job.name in rows]
            write_rows(options.out, options.budget, in_order)
    print_table([rows[job.name] for job in JOBS if job.name in rows])


def kept_rows(out: Path, budget_s: int) -> dict[str, dict[str, Any]]:
    """Return the rows of an earlier call with this budget, by the job: those that failed are run again."""
    if not out.exists():
        return {}
    before = json.loads(out.read_text())
    if before["budget_s"] != budget_s:
        raise SystemExit(f"{out} has the results of a budget of {before['budget_s']} s: pass another --out")
    return {row["job"]: row for row in before["jobs"] if "error" not in row}


def write_rows(out: Path, budget_s: int, rows: Sequence[dict[str, Any]]) -> None:
    out.write_text(json.dumps({"budget_s": budget_s, "cores": os.cpu_count(), "jobs": rows}, indent=1))


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'job':<20} {'truth':>6} {'claim':>24} {'to verdict, s':>14} {'trials':>7}  true")
    for row in rows:
        if "error" in row:
            print(f"{row['job']:<20} failed: {row['error'][-200:]}")
            continue
        interval = "" if row["interval"] is None else " ({:.2f}-{:.2f})".format(*row["interval"])
        claim = f"{row['speedup']:.2f}x{interval}" if row["verdict"] == "better" else row["verdict"]
        seconds = row["verdict_s"] if row["verdict_s"] is not None else "-"
        print(
            f"{row['job']:<20} {row['true_speedup']:>5.2f}x {claim:>24} {seconds:>14} {row['num_trials']:>7}"
            f"  {row['is_true']}"
        )


if __name__ == "__main__":
    main()
