"""The next command after a tuning: run the job with the changes, continue with more time, or look elsewhere.

In: a `TuneResult` and the folder of the tuning. Out: the words of the command, without secrets, and what it is for.
"""

from __future__ import annotations

import math
from pathlib import Path

from flatout.records.change import Safety
from flatout.records.tuning import TuneResult
from flatout.report.tuning_phrases import OBJECTIVE_WORDS, is_better, is_undecided_gain, was_cut_short
from flatout.report.tuning_ratios import DEFAULT_OBJECTIVES
from flatout.secrets import masked_command


def next_words(result: TuneResult, folder: Path | str) -> tuple[str, ...]:
    """Return the next command to type; secrets in the user's command are masked."""
    command = masked_command(result.tuning.command)
    if is_better(result):
        return ("flatout", "run", "--config", str(Path(folder) / "tuned.toml"), "--", *command)
    subcommand = result.request.subcommand if result.request is not None else ""
    if _is_open(result):
        words = (*_same_folder(result, folder), *_more(result), *_options(result, result.allowed_safety))
        words = (subcommand, *words) if subcommand else words
    elif subcommand:
        words = _as_much(result)
    elif result.allowed_safety == "exact":
        words = (*_as_much(result), *_options(result, "rounding"))
    else:
        return ("flatout", "profile", "--", *command)
    return ("flatout", "tune", *masked_command(words), "--", *command)


def _same_folder(result: TuneResult, folder: Path | str) -> tuple[str, ...]:
    """Return `--out` with the same folder if a budget ended the tuning, to resume it; else nothing: a new tuning."""
    return ("--out", str(folder)) if result.is_cut_short and result.request is not None else ()


def _more(result: TuneResult) -> tuple[str, ...]:
    """Return the options for twice the budget that ended the tuning."""
    given_s = result.request.budget_s if result.request is not None else 0.0
    num_trials = result.request.max_trials if result.request is not None else None
    words: tuple[str, ...] = ("--budget", f"{max(1, math.ceil(2 * max(result.took_s, given_s) / 60))}m")
    if num_trials is not None:
        words += ("--trials", str(2 * num_trials if result.end.ended_by == "trial_budget" else num_trials))
    return words


def _as_much(result: TuneResult) -> tuple[str, ...]:
    if result.request is None:
        return ()
    words: tuple[str, ...] = ("--budget", f"{result.request.budget_s:.0f}s")
    return words if result.request.max_trials is None else (*words, "--trials", str(result.request.max_trials))


def _options(result: TuneResult, safety: Safety) -> tuple[str, ...]:
    """Return all options of this tuning, with `--allow` for `safety`."""
    given = list(result.request.options) if result.request is not None else []
    if "--allow" in given:
        at = given.index("--allow")
        del given[at : at + 2]
    if result.request is None and result.objective not in (*DEFAULT_OBJECTIVES, "j_per_step"):
        given += ["--objective", OBJECTIVE_WORDS[result.objective]]
    return (*(() if safety == "exact" else ("--allow", safety)), *given)


def _is_open(result: TuneResult) -> bool:
    """Return whether more time could change the result."""
    if result.tuning.changes.changes:
        return result.tuning.verdict is None or result.tuning.verdict.verdict == "undecided"
    if result.end.ended_by == "no_candidates" and not result.tried:
        return False
    return result.floor is None or was_cut_short(result) or any(is_undecided_gain(one) for one in result.tried)


def next_reason(result: TuneResult) -> str:
    """Say in a few words what the next command is for."""
    words = next_words(result, "")
    if words[1] == "run":
        return "run the job with the changes"
    if words[1] == "profile":
        return "see where its time goes"
    if _is_open(result):
        return "continue with more time" if _same_folder(result, "") else "decide it with more time"
    if result.request is not None and result.request.subcommand:
        return "also try other changes than those of NCCL"
    return "also try changes that alter rounding"
