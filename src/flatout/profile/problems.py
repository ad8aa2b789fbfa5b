"""Explain what a recording lacks: why nothing was loaded, why there is no trace, which rank was killed.

In: the files of each host's parent and each rank's recorder. Out: `Quality` records for the diagnosis.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from flatout.records.events import Quality
from flatout.records.recording import HostRecording, RankRecording

# Reasons why PYTHONPATH does not reach a process: Python's own options, and programs that start a fresh environment.
_ISOLATING = re.compile(r"-[a-zA-Z]*[IES][a-zA-Z]*")
_ONLY_TRACE = "its steps are those of the profile; step times of the whole job are unknown"
_EXPORT_ALL = "use `srun --export=ALL`"
_FRESH = {"sudo", "docker", "podman", "apptainer", "singularity", "ssh", "kubectl", "enroot"}


def problems(
    runs: Sequence[HostRecording],
    ranks: Sequence[RankRecording],
    traced: Sequence[int],
    sampled: Sequence[str],
    *,
    has_xla: bool = False,
) -> list[Quality]:
    """Return the problems. `traced`: the ranks whose trace exists; `sampled`: the hosts whose samples exist.

    `has_xla`: profiles of JAX exist.
    """
    found = [Quality(problem=f"{run.hostname}: {problem}", effect="") for run in runs for problem in run.problems]
    if not ranks:
        return [*found, *(_nothing(run, has_xla=has_xla) for run in runs if run.end_unix_s is not None)]
    found += _whole_job(runs, ranks, sampled)
    for rank in ranks:
        found += rank.problems
        found += _without_trace(rank, runs, rank.rank in traced)
    return found


def _nothing(run: HostRecording, *, has_xla: bool) -> Quality:
    if run.num_left_running:
        left = f"{run.num_left_running} process{'es' * (run.num_left_running > 1)}"
        return Quality(
            problem=f"the command did not wait for {left} that it started, before any made a step",
            effect="only the machine was recorded; start the training in the foreground, without `&` or `nohup`",
        )
    if run.num_pythons == 0:
        problem = f"the recorder was not loaded into any Python process: {_why_not_loaded(run.command)}"
    elif run.num_torch == 0 and has_xla:
        return Quality(problem="the job ran JAX, which was recorded by its own profiler", effect=_ONLY_TRACE)
    elif run.num_torch == 0:
        into = f"{run.num_pythons} Python process{'es' * (run.num_pythons > 1)}"
        problem = f"the recorder was loaded into {into}, but none imported torch"
    elif run.num_old_pythons:
        problem = "the job's Python is older than 3.11"
    else:
        problem = (
            f"{run.num_torch} process{'es' * (run.num_torch > 1)} imported torch, but none made an optimizer step, "
            "a backward pass, two batches of a DataLoader or two calls of a model without gradients"
        )
    return Quality(problem=problem, effect="only the machine was recorded")


def _why_not_loaded(command: Sequence[str]) -> str:
    for position, word in enumerate(command):
        reason = _isolated_by(os.path.basename(word), command[position + 1 :])
        if reason is not None:
            return reason
    if any(os.path.basename(word) == "srun" for word in command):
        return (
            f"SLURM_EXPORT_ENV, as `sbatch --export=NONE` sets it, keeps the environment from the ranks: {_EXPORT_ALL}"
        )
    return "the command does not start Python, or starts it without PYTHONPATH or with the option -I, -E or -S"


def _isolated_by(program: str, arguments: Sequence[str]) -> str | None:
    """Return how a program with these arguments hides PYTHONPATH from its child processes; None if it does not."""
    if program == "srun" and (option := _not_exported(arguments)) is not None:
        return f"`srun {option}` gives the ranks an environment without PYTHONPATH and FLATOUT_*: {_EXPORT_ALL}"
    if program in _FRESH or (program == "env" and "-i" in arguments):
        return f"`{program}` gives the job an environment without PYTHONPATH"
    if program.startswith("python") and (option := _isolating_option(arguments)) is not None:
        return f"Python's option `{option}` ignores PYTHONPATH or `sitecustomize`"
    return None


def _isolating_option(arguments: Sequence[str]) -> str | None:
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-m", "-c"):
            return None
        if _ISOLATING.fullmatch(argument):
            return argument
    return None


def _not_exported(words: Sequence[str]) -> str | None:
    """Return the option of srun that withholds the environment from the ranks; None if there is none."""
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
    missing_or_unsampled = [_missing_ranks(ranks), _unsampled_hosts(ranks, sampled)]
    ends = [_end_of(run) for run in runs]
    return [quality for quality in (*missing_or_unsampled, *ends) if quality is not None]


def _missing_ranks(ranks: Sequence[RankRecording]) -> Quality | None:
    world_size = max(rank.world_size for rank in ranks)
    missing = sorted(set(range(world_size)) - {rank.rank for rank in ranks})
    if not missing:
        return None
    return Quality(
        problem=f"{len(missing)} of {world_size} ranks were not recorded: {_first_of(missing)}",
        effect="what they waited for, or made others wait for, is unknown",
    )


def _unsampled_hosts(ranks: Sequence[RankRecording], sampled: Sequence[str]) -> Quality | None:
    hosts = {rank.hostname for rank in ranks}
    unsampled = sorted(hosts - set(sampled))
    if not unsampled:
        return None
    return Quality(
        problem=f"{len(unsampled)} of {len(hosts)} hosts were not sampled: {_first_of(unsampled)}",
        effect="what their cores, disks, networks and GPUs did is unknown; the job's Python there might lack psutil",
    )


def _first_of(names: Sequence[object]) -> str:
    """List the first few names."""
    shown = ", ".join(map(str, names[:8]))
    return f"{shown}, ..." if len(names) > 8 else shown


def _end_of(run: HostRecording) -> Quality | None:
    if run.end_unix_s is None:
        return Quality(
            problem=f"{run.hostname}: the recording was not finished", effect="some of its files may be missing"
        )
    if run.signal is not None:
        how = f"was ended by signal {run.signal}"
    elif run.exit_code:
        how = f"ended with code {run.exit_code}"
    else:
        return None
    return Quality(problem=f"{run.hostname}: the command {how}", effect="steps may be missing")


def _without_trace(rank: RankRecording, runs: Sequence[HostRecording], has_trace: bool) -> list[Quality]:
    is_light = bool(runs) and all(run.is_light for run in runs)
    if rank.settled_step is None:
        num_steps = len(rank.steps.number)
        # A killed rank may have made more steps than it recorded.
        what = "its record ends" if rank.ended_by is None else "the job ended"
        problem = f"{what} after {num_steps} step{'s' * (num_steps != 1)}, before step times were stable"
        missing = "no settled step time" if is_light else "no trace and no stable step time"
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
