"""What a recording lacks, in clear words: why nothing was loaded, why there is no trace, which rank was killed.

In: what each host's parent and each rank's recorder wrote down. Out: `Quality` records for the diagnosis.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from flatout.records.events import Quality
from flatout.records.recording import HostRecording, RankRecording

# What keeps PYTHONPATH from a process: Python's own options, and programs that begin a fresh environment.
_ISOLATING = re.compile(r"-[a-zA-Z]*[IES][a-zA-Z]*")
_EXPORT_ALL = "use `srun --export=ALL`"
_FRESH = {"sudo", "docker", "podman", "apptainer", "singularity", "ssh", "kubectl", "enroot"}


def problems(
    runs: Sequence[HostRecording], ranks: Sequence[RankRecording], traced: Sequence[int], sampled: Sequence[str]
) -> list[Quality]:
    """`traced`: the ranks whose trace file is there; `sampled`: the hosts whose samples are."""
    found = [Quality(problem=f"{run.hostname}: {problem}", effect="") for run in runs for problem in run.problems]
    if not ranks:
        return [*found, *(_nothing(run) for run in runs if run.end_unix_s is not None)]
    found += _whole_job(runs, ranks, sampled)
    for rank in ranks:
        found += [Quality(rank=rank.rank, problem=problem, effect=_effect(problem)) for problem in rank.problems]
        found += _without_trace(rank, runs, rank.rank in traced)
    return found


def _nothing(run: HostRecording) -> Quality:
    if run.num_left_running:
        left = f"{run.num_left_running} process{'es' * (run.num_left_running > 1)}"
        return Quality(
            problem=f"the command did not wait for {left} that it started, before any made a step",
            effect="nothing was recorded but the machine; start the training in the foreground, without `&` or `nohup`",
        )
    if run.num_pythons == 0:
        problem = f"the recorder was not loaded into any Python process: {_why_not_loaded(run.command)}"
    elif run.num_torch == 0:
        into = f"{run.num_pythons} Python process{'es' * (run.num_pythons > 1)}"
        problem = f"the recorder was loaded into {into}, but none imported torch"
    elif run.num_old_pythons:
        problem = "the job's Python is older than 3.11"
    else:
        problem = (
            f"{run.num_torch} process{'es' * (run.num_torch > 1)} imported torch, but none made an optimizer step, "
            "a backward pass or two batches of a DataLoader"
        )
    return Quality(problem=problem, effect="nothing was recorded but the machine")


def _why_not_loaded(command: Sequence[str]) -> str:
    for position, word in enumerate(command):
        name = os.path.basename(word)
        if name == "srun" and (kept := _not_exported(command[position + 1 :])):
            return f"`srun {kept}` gives the ranks an environment without PYTHONPATH and FLATOUT_*: {_EXPORT_ALL}"
        if name in _FRESH or (name == "env" and "-i" in command[position:]):
            return f"`{name}` gives the job an environment without PYTHONPATH"
        if name.startswith("python"):
            for option in command[position + 1 :]:
                if not option.startswith("-") or option in ("-m", "-c"):
                    break
                if _ISOLATING.fullmatch(option):
                    return f"Python's option `{option}` ignores PYTHONPATH or `sitecustomize`"
    if any(os.path.basename(word) == "srun" for word in command):
        return (
            f"SLURM_EXPORT_ENV, as `sbatch --export=NONE` sets it, keeps the environment from the ranks: {_EXPORT_ALL}"
        )
    return "the command starts no Python, or with an environment without PYTHONPATH, or with the option -I, -E or -S"


def _not_exported(words: Sequence[str]) -> str | None:
    """The option of srun by which the environment stays behind; None where it goes along."""
    for position, word in enumerate(words):
        if word in ("--export", "--export=") and position + 1 < len(words):
            word = f"--export={words[position + 1]}"
        if word.startswith("--export="):
            names = word.removeprefix("--export=").split(",")
            return None if "ALL" in names else word
        if word.endswith(".py") or os.path.basename(word).startswith("python"):
            break
    return None


def _whole_job(runs: Sequence[HostRecording], ranks: Sequence[RankRecording], sampled: Sequence[str]) -> list[Quality]:
    found = []
    world_size = max(rank.world_size for rank in ranks)
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        found.append(
            Quality(
                problem=f"{len(missing)} of {world_size} ranks left no record: {shown}",
                effect="what they waited for, or made others wait for, is unknown",
            )
        )
    unsampled = sorted({rank.hostname for rank in ranks} - set(sampled))
    if unsampled:
        shown = ", ".join(unsampled[:8]) + (", ..." if len(unsampled) > 8 else "")
        problem = f"{len(unsampled)} of {len({rank.hostname for rank in ranks})} hosts were not sampled: {shown}"
        effect = "what their cores, disks, networks and GPUs did is unknown; the job's Python there may lack psutil"
        found.append(Quality(problem=problem, effect=effect))
    for run in runs:
        if run.end_unix_s is None:
            found.append(
                Quality(problem=f"{run.hostname}: the recording was not ended", effect="files there may be missing")
            )
        elif run.signal is not None or run.exit_code:
            how = f"was ended by signal {run.signal}" if run.signal is not None else f"ended with code {run.exit_code}"
            found.append(Quality(problem=f"{run.hostname}: the command {how}", effect="steps may be missing"))
    return found


def _without_trace(rank: RankRecording, runs: Sequence[HostRecording], has_trace: bool) -> list[Quality]:
    is_light = bool(runs) and all(run.is_light for run in runs)
    if rank.settled_step is None:
        num_steps = len(rank.steps.number)
        # Of a rank that ended without a word, the last steps are not known.
        what = "its record ends" if rank.ended_by is None else "the job ended"
        problem = f"{what} after {num_steps} step{'s' * (num_steps != 1)}, before step times had settled"
        missing = "no settled step time" if is_light else "no trace and no settled step time"
        effect = f"{missing}; a shorter warm-up can be set with --warmup"
        return [Quality(rank=rank.rank, problem=problem, effect=effect)]
    if has_trace or is_light or rank.problems:
        return []
    return [
        Quality(
            rank=rank.rank,
            problem="the job ended before the traced steps",
            effect="no trace; a shorter warm-up can be set with --warmup",
        )
    ]


def _effect(problem: str) -> str:
    return "this rank has no trace, or not all of it" if "trace" in problem or "profiler" in problem else ""
