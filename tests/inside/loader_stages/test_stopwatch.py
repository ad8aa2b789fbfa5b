"""Exclusive times of nested stages, against times that the test plants."""

from __future__ import annotations

import threading
import time

from flatout.inside.loader_stages.stopwatch import STOPWATCH, Stopwatch, timed


def compute(seconds: float) -> None:
    """Compute for so long, in CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_an_inner_stage_stops_the_outer_one() -> None:
    stopwatch = Stopwatch()
    began = time.perf_counter()
    stopwatch.begin("outer")
    compute(0.01)
    stopwatch.enter("inner")
    time.sleep(0.03)
    stopwatch.leave()
    compute(0.01)
    stopwatch.finish()
    elapsed_s = time.perf_counter() - began
    outer, inner = stopwatch.times["outer"], stopwatch.times["inner"]
    assert outer.cpu_s >= 0.02 and inner.cpu_s < 0.01
    assert inner.wall_s >= 0.03
    assert 0.05 <= outer.wall_s + inner.wall_s <= elapsed_s
    assert (outer.num_calls, inner.num_calls) == (1, 1)


def test_what_an_exception_leaves_open_is_closed() -> None:
    stopwatch = Stopwatch()
    stopwatch.begin("outer")
    stopwatch.enter("inner")
    stopwatch.finish()
    assert stopwatch.open_stage is None and not stopwatch.runs_here()
    assert set(stopwatch.times) == {"outer", "inner"}


def test_only_the_thread_that_began_is_timed() -> None:
    stopwatch = Stopwatch()
    stopwatch.begin("outer")
    seen: list[bool] = []
    other = threading.Thread(target=lambda: seen.append(stopwatch.runs_here()))
    other.start()
    other.join()
    assert seen == [False] and stopwatch.runs_here()
    stopwatch.finish()


def test_a_stage_within_itself_is_one_call() -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * again(n - 1)

    again = timed("decode", factorial)
    STOPWATCH.reset()
    STOPWATCH.begin("code")
    try:
        assert again(5) == 120
    finally:
        STOPWATCH.finish()
    assert STOPWATCH.times["decode"].num_calls == 1
    STOPWATCH.reset()


def test_a_function_is_only_called_while_nothing_is_timed() -> None:
    STOPWATCH.reset()
    assert timed("decode", lambda value: value + 1)(1) == 2
    assert STOPWATCH.times == {}
