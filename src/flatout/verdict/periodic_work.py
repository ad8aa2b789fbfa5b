"""Find the work that lengthens some steps of a job, and how often it returns: from hooks, and from the step times.

In: the windows of all trials, as the work belongs to the job. Out: a `Work` for each kind. Kinds that hooks saw in the
same steps (an epoch's end, its evaluation and its checkpoint) are one work. Steps that are long without a hook are work
of the kind `unknown`. Where an arm has its own period, as with fewer evaluations, that holds for the arm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.verdict.hooked_work import hooked_works
from flatout.verdict.long_steps import works_without_hook
from flatout.verdict.window import Window
from flatout.verdict.work import Work


def find_work(windows: Sequence[Window]) -> list[Work]:
    """Return all work that some steps have and most do not."""
    works = hooked_works(windows)
    is_explained = {window.index: np.zeros(window.num_steps, dtype=np.bool_) for window in windows}
    for work in works:
        for index, is_due in work.is_due.items():
            is_explained[index] = is_explained[index] | is_due
    return [*works, *works_without_hook(windows, is_explained)]
