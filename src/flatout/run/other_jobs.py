"""Handle jobs of other `flatout run`s on this host: report them, take them over, or refuse to start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.errors import InputError
from flatout.keep.other_runs import Other, RunInfo, end, others, refuse, write_about
from flatout.launch.abandoned import abandoned_jobs
from flatout.run.messages import say


def settle_with_others(mine: RunInfo, state: Path, *, takes_over: bool, clean: Callable[[str], str]) -> bool:
    """Report each other job, end those to take over, and return whether one was taken over.

    Reported are jobs that share something with this one, and those that a killed command left in this folder.

    Raises InputError if another job is in the way. Otherwise `state` then identifies this run to later ones.
    """
    is_taken_over = False
    reported = set()
    for other in list(others(mine)):
        reported.add(other.state)
        if not other.is_in_the_way:
            say(clean(other.describe()))
            continue
        _check_may_take_over(other, takes_over, clean)
        say(clean(f"taking over: {other.describe()}"))
        end(other)
        is_taken_over = True
    for abandoned in abandoned_jobs():
        if abandoned.notes not in reported:
            say(clean(abandoned.describe()))
    write_about(state, mine)
    return is_taken_over


def _check_may_take_over(other: Other, takes_over: bool, clean: Callable[[str], str]) -> None:
    if takes_over and not other.is_watched and other.is_same_job:
        return
    refusal = refuse(other)
    raise InputError(clean(str(refusal)), hint=clean(refusal.hint))
