"""torch 2.13's gloo aborts at its teardown, in one of three to eight runs of a small job, without Flatout too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

GLOO_ABORT = "terminate called without an active exception"
ABORTS = 3
Result = TypeVar("Result")


def again_if_aborted(
    run: Callable[[], Result], errors_of: Callable[[Result], str], clean_up: Callable[[], object]
) -> Result:
    """What `run` gives; where its errors tell of such an abort, `clean_up` and another run, `ABORTS` times at most."""
    result = run()
    for _ in range(ABORTS):
        if GLOO_ABORT not in errors_of(result):
            break
        clean_up()
        result = run()
    return result
