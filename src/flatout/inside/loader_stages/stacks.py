"""Where the data set's own code spends its time: samples of the stack of the thread that makes batches.

In: a thread of a process that makes batches. Out: how often each function was the innermost one of the script's own
code, while a batch was timed and no library's stage was open. A sample is taken by a thread that sleeps in between:
about a hundred a second, each some microseconds.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections import Counter
from types import FrameType

from flatout.inside.loader_stages.stopwatch import STOPWATCH
from flatout.inside.protocol import LoaderStage

INTERVAL_S = 0.01
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = __file__.rpartition("/loader_stages/")[0]
_MAX_DEPTH = 60


class StackSampler:
    """Samples of one thread, taken by another one until `stop`."""

    def __init__(self, thread_id: int) -> None:
        self.counts: Counter[str] = Counter()
        self._thread_id = thread_id
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="flatout-stacks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True

    def _run(self) -> None:
        while not self._is_stopped:
            time.sleep(INTERVAL_S)
            stage = STOPWATCH.open_stage
            if stage == LoaderStage.CODE:
                place = place_in_script(sys._current_frames().get(self._thread_id))
                if place is not None:
                    self.counts[place] += 1


def place_in_script(frame: FrameType | None) -> str | None:
    """Return `function (file:line)` of the innermost frame of the script's own code; None if there is none.

    The frames outside the making of a batch, in the script that a worker was forked from, do not count.
    """
    for _ in range(_MAX_DEPTH):
        if frame is None or frame.f_code.co_filename.startswith(_OWN):
            return None
        code = frame.f_code
        if _is_of_script(code.co_filename):
            return f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return None


def _is_of_script(filename: str) -> bool:
    is_generated = filename.startswith("<")
    return not is_generated and not filename.startswith(_LIBRARIES)
