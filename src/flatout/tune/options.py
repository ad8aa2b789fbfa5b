"""The options of a tuning run."""

from __future__ import annotations

import shlex

import msgspec

from flatout.errors import UsageError
from flatout.nccl_tuner.in_tuning import NcclRequest, nccl_words
from flatout.records.call_limit import CallLimit
from flatout.records.change import Safety
from flatout.records.tuning import TuneRequest
from flatout.records.verdict import Objective

# The values of `--objective`, and the cost that the verdict compares.
OBJECTIVES: dict[str, Objective] = {
    "samples/s": "s_per_sample",
    "tokens/s": "s_per_token",
    "steps/s": "step_s",
    "memory": "peak_memory_bytes",
    "energy": "j_per_sample",
}


def named_objective(text: str | None) -> Objective | None:
    """Return the cost behind a value of `--objective`. Raises UsageError if there is no such value."""
    if text is None:
        return None
    if text not in OBJECTIVES:
        raise UsageError(f"`--objective` must be one of {', '.join(OBJECTIVES)}, but got {text}")
    return OBJECTIVES[text]


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    allowed_safety: Safety = "exact"
    objective: Objective | None = None  # None: samples/s if the samples are known, else steps/s
    budget_s: float = 3600.0
    max_trials: int | None = None
    num_steps: int | None = None  # measured steps per trial; None: as many as the noise floor requires
    knobs: tuple[str, ...] = ()
    min_effect: float = 0.01
    max_rounds: int = 50  # each excludes what it tried, so that rounds end before that
    max_screened: int = 10  # candidates per round
    uses_history: bool = True  # correct predictions using earlier tuning runs, and add this run to them
    nccl: NcclRequest = NcclRequest()  # how NCCL is measured where communication is exposed
    blocks: bool = False  # compare changes that can be switched in blocks of steps within one job, before their trials
    latency: CallLimit | None = None  # of a script that only infers
    sbatch_options: tuple[str, ...] | None = None  # each run is a Slurm job with these options; None: runs are local


def tune_request(options: TuneOptions, warmup: int | None, *, applies: bool = False) -> TuneRequest:
    """Return the options that differ from their defaults, which the report needs for the next command."""
    if options.nccl.is_only:
        return TuneRequest(budget_s=options.budget_s, options=nccl_words(options.nccl), subcommand="nccl")
    words: list[str] = []
    for knob in options.knobs:
        words += ["--knob", knob]
    if options.allowed_safety != "exact":
        words += ["--allow", options.allowed_safety]
    if options.objective is not None:
        words += ["--objective", next(name for name, objective in OBJECTIVES.items() if objective == options.objective)]
    latency = None if options.latency is None else options.latency.text
    for name, value in (("--latency", latency), ("--steps", options.num_steps), ("--warmup", warmup)):
        if value is not None:
            words += [name, str(value)]
    if not options.uses_history:
        words.append("--no-history")
    if options.blocks:
        words.append("--blocks")
    if options.sbatch_options is not None:
        words += ["--launcher", "slurm"]
    if options.sbatch_options:
        words += ["--sbatch-options", shlex.join(options.sbatch_options)]
    if applies:
        words.append("--apply")
    return TuneRequest(budget_s=options.budget_s, max_trials=options.max_trials, options=tuple(words))
