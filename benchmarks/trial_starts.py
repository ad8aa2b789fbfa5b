"""What trials cost on real processes: where a start goes, how long a trial is, and what a profile is worth as a trial.

    python benchmarks/trial_starts.py [--only starts lengths profiles bytecode preparing] [--rounds 3] [--out FILE.json]

`starts`: two gloo ranks whose start has parts of a known length, beside what the recorder says. `lengths`: jobs of 1 s,
50 ms and 5 ms a step, each with 30 counted steps and with the policy's rule. `profiles`: trials and profiles of one job
in turn; the ratio of their steps should be 1. `bytecode`: `import torch` with and without its compiled bytecode.
`preparing`: the steps of a job that uses all cores, and of one that uses a core, while another process imports torch,
as if it prepared the next trial.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule, fixed_steps
from flatout.records.trial import TrialResult
from flatout.report.start_costs import start_line, trial_line
from flatout.trial.journal import Heading, Journal
from flatout.trial.profile_as_trial import profile_as_trial
from flatout.tune.runner import Runner
from flatout.tune.trial_length import KnownTimes, trial_length

JOB = str(Path(__file__).with_name("trial_starts_job.py"))
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
BUDGET_S = 600.0
Section = Callable[[Path, int], Any]


def runner_of(folder: Path, *words: str, ranks: int = 1, environment: Mapping[str, str] = os.environ) -> Runner:
    command = [*(TWO_RANKS if ranks == 2 else [sys.executable]), JOB, *words]
    folder.mkdir(parents=True)
    heading = Heading(tool_version="benchmark", command=tuple(command), options={})
    journal = Journal(folder / "journal.jsonl", heading)
    return Runner(
        command,
        folder,
        journal,
        shown_command=command,
        budget_s=1e6,
        say=lambda line: say(f"  {line}\n"),
        environment=environment,
    )


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def starts(folder: Path, rounds: int) -> Any:
    known = {"setup_s": 1.5, "evaluation_s": 1.0, "first_batch_s": 0.7}
    words = ("--setup", "1.5", "--evaluate", "1.0", "--first-batch", "0.7", "--step", "0.05")
    runner = runner_of(folder, *words, ranks=2)
    results = [runner.trial(ChangeSet(), StopRule(min_steps=10, max_steps=20)) for _ in range(rounds)]
    say(f"{trial_line(results)}\n{start_line(results)}\n")
    costs = [result.start_costs for result in results if result.start_costs is not None]
    measured = {name: median(getattr(one, name) for one in costs) for name in costs[0].__struct_fields__[:8]}
    return {"planted_s": known, "measured_s": measured, "sum_s": sum(measured.values()), "start_s": results[0].start_s}


def described(result: TrialResult) -> dict[str, Any]:
    times = np.asarray(result.step_s)
    return {
        "counted_steps": len(times),
        "counted_s": round(float(times.sum()), 3),
        "first_counted_step": result.first_step,
        "step_s": round(float(times.mean()), 5),
        "start_s": result.start_s,
        "took_s": result.took_s,
        "stopped_by": result.stopped_by,
    }


def lengths(folder: Path, rounds: int) -> Any:
    found = {}
    for step_s, noise in ((1.0, 0.05), (0.05, 0.1), (0.005, 0.1)):
        runner = runner_of(folder / str(step_s), "--step", str(step_s), "--noise", str(noise), ranks=2)
        thirty = runner.trial(ChangeSet(), fixed_steps(30))
        job = KnownTimes(step_s=step_s, start_s=thirty.start_s, run_sd=0.01)
        rule = trial_length(job, effect=0.3, budget_left_s=BUDGET_S)
        by_rule = runner.trial(ChangeSet(), rule)
        slower = trial_length(job, effect=0.3, budget_left_s=BUDGET_S, reference_step_s=step_s / 2)
        abandoned = runner.trial(ChangeSet(), slower)
        of_job = {"30 steps": thirty, "policy": by_rule, "twice as slow as allowed": abandoned}
        found[f"{step_s:g} s"] = {name: described(result) for name, result in of_job.items()}
    return found


def profiles(folder: Path, rounds: int) -> Any:
    found = {}
    jobs = {"one process": ("1", "0.03"), "two ranks": ("2", "0.03"), "a loader of 10 ms": ("1", "0.01")}
    for name, (ranks, step_s) in jobs.items():
        batch_s = "0.01" if "loader" in name else "0"
        runner = runner_of(folder / name, "--step", step_s, "--batch", batch_s, "--noise", "0.05", ranks=int(ranks))
        rule = StopRule(min_steps=40, max_steps=200, min_s=2.0, max_s=10.0, relative_error=0.01)
        logs = []
        for repeat in range(rounds):
            trial = runner.trial(ChangeSet(), rule)
            profiled = runner.profile(ChangeSet(), repeat, rule)
            as_trial = profile_as_trial(profiled.recording, profiled.facts)
            if as_trial is not None:
                logs.append(math.log(np.mean(as_trial.step_s) / np.mean(trial.step_s)))
        spread = np.std(logs, ddof=1) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        found[name] = {
            "taken": f"{len(logs)} of {rounds}",
            "ratio": math.exp(float(np.mean(logs))) if logs else None,
            "standard_error": float(spread),
        }
    return found


def import_s(**variables: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env={**os.environ, **variables})
    return time.monotonic() - began


def bytecode(folder: Path, rounds: int) -> Any:
    empty = {"PYTHONPYCACHEPREFIX": str(folder / "none"), "PYTHONDONTWRITEBYTECODE": "1"}
    import_s()
    with_bytecode = [import_s() for _ in range(rounds)]
    without = [import_s(**empty) for _ in range(rounds)]
    # Trials of a job whose environment says that no bytecode is written, with a torch that has none.
    environment = {"PYTHONPATH": str(linked_torch(folder / "packages")), "PYTHONDONTWRITEBYTECODE": "1"}
    runner = runner_of(folder / "trials", "--step", "0.05", environment={**os.environ, **environment})
    trials = [runner.trial(ChangeSet(), StopRule(min_steps=5, max_steps=10)) for _ in range(rounds + 2)]
    return {
        "import_s": median(with_bytecode),
        "import_without_bytecode_s": median(without),
        "starts_s": [trial.start_s for trial in trials],
        "imports_s": [trial.start_costs.import_s for trial in trials if trial.start_costs is not None],
    }


def linked_torch(folder: Path) -> Path:
    """Make a folder with links to all files of torch but its bytecode."""
    source = Path(str(find_spec("torch").origin)).parent  # type: ignore[union-attr]
    for root, _, names in os.walk(source):
        if root.endswith("__pycache__"):
            continue
        target = folder / "torch" / Path(root).relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (target / name).symlink_to(Path(root) / name)
    return folder


def preparing(folder: Path, rounds: int) -> Any:
    found = {}
    for name, words in {"all cores": ("--spin", "1500"), "one core": ("--step", "0.02")}.items():
        runner = runner_of(folder / name, *words)
        rule = StopRule(min_steps=50, max_steps=100_000, min_s=4.0, max_s=6.0)
        alone, beside = [], []
        for _ in range(rounds):
            alone.append(runner.trial(ChangeSet(), rule))
            importing = subprocess.Popen(
                ["/bin/sh", "-c", 'while :; do "$0" -c "import torch"; done', sys.executable], start_new_session=True
            )
            beside.append(runner.trial(ChangeSet(), rule))
            os.killpg(importing.pid, 15)
            importing.wait()
        pairs = zip(alone, beside, strict=True)
        ratio = median(float(np.mean(two.step_s) / np.mean(one.step_s)) for one, two in pairs)
        costs = [result.start_costs for result in alone if result.start_costs is not None]
        found[name] = {
            "step_ratio": ratio,
            "import_s": median(one.launch_s + one.import_s for one in costs),
            "end_s": median(one.end_s for one in costs if one.end_s is not None),
            "took_s": median(result.took_s for result in alone if result.took_s is not None),
        }
    return found


SECTIONS: dict[str, Section] = {
    "starts": starts,
    "lengths": lengths,
    "profiles": profiles,
    "bytecode": bytecode,
    "preparing": preparing,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count(), "rounds": arguments.rounds}
    with tempfile.TemporaryDirectory(prefix="trial-starts-") as folder:
        for name in arguments.only:
            say(f"{name}\n")
            found[name] = SECTIONS[name](Path(folder) / name, arguments.rounds)
            say(f"{json.dumps(msgspec.to_builtins(found[name]), indent=1)}\n")
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
