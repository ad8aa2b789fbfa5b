"""Run the measurements: warm and check each benchmark once, then repeat all of them in rounds until the time is up.

Each round goes through all measurements once, so that a quiet minute favours none of them. The first rank decides
which measurements are dropped and when the rounds end; the other ranks follow. A measurement that fails on one rank is
dropped on all of them, with the reason.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError, Who
from flatout.probe.ceilings.current_benchmark import CurrentBenchmark
from flatout.probe.ceilings.energy import Joules, note_power
from flatout.probe.ceilings.queued import calls_of
from flatout.probe.ceilings.rank_group import RankGroup, tell
from flatout.probe.ceilings.raw import BenchSettings, RawBenchmark, key_of
from flatout.probe.limits import allowed_cores

MIN_ROUNDS, MAX_ROUNDS = 3, 25
_SHARE_OF_WARMING = 0.4  # share of the time, before the first repetition that counts
_SHARE_OF_CHECKS = 0.1  # share of the time, after the last repetition
_SHARE_OF_POWER = 0.15  # share of the time, before the first repetition that counts
_SHARE_OF_POWER_ALONE = 0.3  # the same if only matrix multiplication was asked for
_PASSES = 3  # passes, each over the measurements that the previous pass had no time for
_CHEAP = 5  # samples: a larger size of a curve that costs fewer is not dropped for lack of time
# A first call is repeated if it took longer than this, and longer than this factor times the previous size explains.
_COLD_S, _COLD_TIMES = 0.05, 3.0
_CPU_SAMPLE_S, _GPU_SAMPLE_S = 0.02, 0.005
_FAILURES = (RuntimeError, NotImplementedError, ValueError, AttributeError, TypeError, OSError, MemoryError)
_PEERS_PATIENCE_S = 20.0  # exit code of a rank that failed in a collective, where the other ranks may wait for it


class _FirstCall(NamedTuple):
    """The first call of a measurement on one rank."""

    took_s: float = 0.0
    check_s: float = 0.0
    problem: str = ""  # why it cannot be measured


class Rounds:
    def __init__(
        self,
        benchmarks: list[Benchmark],
        settings: BenchSettings,
        rank_group: RankGroup,
        torch: Any,
        began: float,
        is_gpu: bool,
        where: CurrentBenchmark,
    ) -> None:
        self._where, self._without = where, settings.without
        self._is_replaced = settings.meeting_file is not None  # by a new set of ranks, if a rank is lost
        self._power_s = settings.time_s * (
            _SHARE_OF_POWER_ALONE if set(settings.only) == {"matmul"} else _SHARE_OF_POWER
        )
        self._keys = [key_of(benchmark.name, benchmark.labels) for benchmark in benchmarks]
        self._failed: dict[int, str] = {}  # in this round, on this rank
        self.benchmarks, self.rank_group, self._torch = benchmarks, rank_group, torch
        self._began, self._time_s = began, settings.time_s
        self._sample_s = _GPU_SAMPLE_S if is_gpu else _CPU_SAMPLE_S
        self._is_gpu = is_gpu
        self._round_s = self._reserved_s = 0.0
        self._all_cores = max(1, int(allowed_cores()))
        self._calls = [0] * len(benchmarks)  # calls in one repetition; 0: dropped
        self._cost_s, self._first_s, self._check_s = ([0.0] * len(benchmarks) for _ in range(3))
        self._check_again: list[int] = []
        self.not_measured: dict[str, str] = {}
        self.found = [
            RawBenchmark(name=benchmark.name, unit=benchmark.unit, work=benchmark.work, checked=benchmark.checked)
            for benchmark in benchmarks
        ]
        for benchmark, raw in zip(benchmarks, self.found, strict=True):
            raw.labels = dict(benchmark.labels)

    def _takes_part(self, benchmark: Benchmark) -> bool:
        return benchmark.who != "first" or self.rank_group.rank == 0

    def _threads(self, who: Who) -> None:
        if self._torch is not None and not self._is_gpu:
            here = self.rank_group.hosts.count(socket.gethostname())
            self._torch.set_num_threads(self._all_cores if who == "first" else max(1, self._all_cores // here))

    def _left_s(self) -> float:
        return self._time_s - (time.monotonic() - self._began)

    def note_power(self, joules: Joules | None) -> None:
        """Measure the power of matrix multiplications on this rank's GPU, in a small part of the time."""
        kept = [index for index, calls in enumerate(self._calls) if calls]
        benchmarks, found = [self.benchmarks[index] for index in kept], [self.found[index] for index in kept]
        with suppress(*_FAILURES):
            self.not_measured |= note_power(benchmarks, found, joules, time_s=self._power_s)

    def warm(self) -> None:
        """Run each measurement once, with its check; one that fails is dropped, with the larger sizes of its curve.

        Each curve gets an equal part of the remaining time; other curves get unused time in a later pass.
        """
        until = time.monotonic() + self._left_s() * _SHARE_OF_WARMING
        waiting = list(range(len(self.benchmarks)))
        failed: dict[str, str] = {}
        for _ in range(_PASSES):
            waiting = self._warm(waiting, until, failed)
        for index in waiting:
            self._drop(index, "there was not enough time: raise --time")

    def _warm(self, indexes: list[int], until: float, failed: dict[str, str]) -> list[int]:
        """Return the measurements for which no time was left.

        The cost of a curve's next size is assumed to grow in proportion to its work.
        """
        curves = {index: self.benchmarks[index].curve or f"#{index}" for index in indexes}
        ended: set[str] = set()  # only the first rank's set counts
        spent_s: dict[str, float] = defaultdict(float)  # by curve
        left_out: list[int] = []
        for position, index in enumerate(indexes):
            benchmark, curve = self.benchmarks[index], curves[index]
            if curve in failed:
                self._drop(index, failed[curve])
                continue
            expected_s = self._expected_s(index)
            if self._is_larger_size(index):
                num_curves = len({curves[later] for later in indexes[position:]} - ended)
                left_s = until - time.monotonic() + spent_s[curve]
                if spent_s[curve] + expected_s > max(left_s / max(num_curves, 1), 0.0):
                    ended.add(curve)
            if self.rank_group.of_first(curve in ended):
                ended.add(curve)
                left_out.append(index)
                continue
            self._threads(benchmark.who)
            of_ranks = self._first_calls(index, benchmark)
            # A first call can start a context, a communicator or a library, so it is repeated.
            took_s = max(call.took_s + call.check_s for call in of_ranks)
            if self._is_larger_size(index + 1) and took_s > max(_COLD_S, _COLD_TIMES * expected_s):
                of_ranks = self._first_calls(index, benchmark)
            problem = next((call.problem for call in of_ranks if call.problem), "")
            if problem:
                failed[curve] = problem
                self._drop(index, problem)
                continue
            self._plan_repetition(index, of_ranks)
            spent_s[curve] += self._first_s[index] + self._check_s[index]
            if self.rank_group.rank == 0:
                tell({"progress": [sum(map(bool, self._calls)), len(self.benchmarks), f"preparing {benchmark.name}"]})
        return left_out

    def _is_larger_size(self, index: int) -> bool:
        """Whether the measurement is the next size of the curve of the measurement before it."""
        if not 0 < index < len(self.benchmarks):
            return False
        curve = self.benchmarks[index].curve
        return bool(curve) and self.benchmarks[index - 1].curve == curve

    def _expected_s(self, index: int) -> float:
        """Return the expected time of a first call and its check; 0 for the smallest size of a curve."""
        if not self._is_larger_size(index):
            return 0.0
        growth = self.benchmarks[index].work / self.benchmarks[index - 1].work
        return growth * (self._first_s[index - 1] + self._check_s[index - 1])

    def _plan_repetition(self, index: int, of_ranks: list[_FirstCall]) -> None:
        """Choose the number of calls per repetition from the time of the slowest rank."""
        benchmark = self.benchmarks[index]
        took_s = max(call.took_s for call in of_ranks)
        num_calls = max(self._sample_s, benchmark.sample_s) / max(took_s, 1e-7)
        num_turns = self.rank_group.size if benchmark.who == "turns" else 1
        self._first_s[index] = took_s
        self._check_s[index] = max(call.check_s for call in of_ranks)
        self._calls[index] = int(min(max(1.0, num_calls), benchmark.max_calls))
        self._cost_s[index] = (self._calls[index] + 1) * took_s * num_turns

    def _first_calls(self, index: int, benchmark: Benchmark) -> list[_FirstCall]:
        """Return the first calls of all ranks. A rank that fails in a collective ends itself to free the others."""
        self._where.at(self._keys[index])
        mine = self._first_call(index, benchmark)
        timer = None
        has_failed = bool(mine.problem) and self._keys[index] not in self._without
        if has_failed and benchmark.who == "group" and self._is_replaced:
            timer = threading.Timer(_PEERS_PATIENCE_S, _end_alone, [mine.problem])
            timer.daemon = True
            timer.start()
        of_ranks: list[_FirstCall] = self.rank_group.gathered(mine)
        if timer is not None:
            timer.cancel()
        self._where.at(None)
        return of_ranks

    def _first_call(self, index: int, benchmark: Benchmark) -> _FirstCall:
        if self._keys[index] in self._without:
            return _FirstCall(problem=self._without[self._keys[index]])
        if not self._takes_part(benchmark):
            return _FirstCall()
        try:
            began = time.perf_counter()
            wrong = benchmark.check()
            benchmark.sync()
            check_s = time.perf_counter() - began
            benchmark.before()
            began = time.perf_counter()
            benchmark.call()
            benchmark.sync()
            took_s = time.perf_counter() - began
        except CannotMeasureError as error:
            return _FirstCall(problem=str(error))
        except _FAILURES as error:
            return _FirstCall(problem=f"it failed: {_first_line(error)}")
        self.found[index].labels = dict(benchmark.labels)  # including what the check has read
        if wrong:
            self.found[index].wrong = wrong
        return _FirstCall(took_s=took_s, check_s=check_s)

    def _drop(self, index: int, why: str) -> None:
        self._calls[index] = 0
        benchmark = self.benchmarks[index]
        kind = benchmark.labels.get("dtype") if benchmark.name == "matmul" else benchmark.labels.get("group")
        what = f"{benchmark.name} {kind}" if kind else benchmark.name
        if self._is_larger_size(index):
            if not self._calls[index - 1]:
                return  # already reported for the smaller size
            what += f", the {'shapes' if benchmark.name == 'matmul' else 'sizes'} above"
        self.not_measured.setdefault(what, why)

    def measure(self, told: Callable[[], None]) -> None:
        """Repeat all measurements in rounds until the time is up.

        If the time is too short for three rounds, the most expensive measurements are dropped first. `told` is called
        after each round that completes a result, so that a lost rank does not lose the results so far.
        """
        self._check_again = self.rank_group.of_first(self._cheapest_checks())
        for index in self.rank_group.of_first(self._too_dear()):
            self._drop(index, "there was not enough time: raise --time")
        done = 0
        while self.rank_group.of_first(done < MIN_ROUNDS or self._has_time(done)):
            round_began = time.monotonic()
            for index, benchmark in enumerate(self.benchmarks):
                if self._calls[index]:
                    self._sample(index, benchmark)
            self._where.at(None)
            self._drop_failed()
            done += 1
            self._round_s = time.monotonic() - round_began
            if done >= MIN_ROUNDS:
                told()
            if self.rank_group.rank == 0:
                tell({"progress": [done, self._num_rounds(done), "measuring"]})

    def _drop_failed(self) -> None:
        """Drop a measurement on all ranks if it failed on any of them."""
        for rank, failed in enumerate(self.rank_group.gathered(self._failed)):
            for index, why in failed.items():
                self._calls[index] = 0
                self.found[index].seconds.clear()
                self.found[index].queued_seconds.clear()
                self.not_measured.setdefault(self._keys[index], f"rank {rank} failed in it: {why}")
        self._failed.clear()

    def _cheapest_checks(self) -> list[int]:
        """Choose the checks that fit into a tenth of the time, cheapest first; the largest sizes may lose theirs."""
        order = sorted((i for i, calls in enumerate(self._calls) if calls), key=lambda index: self._check_s[index])
        self._reserved_s, kept = 0.0, []
        for index in order:
            if self._reserved_s + self._check_s[index] <= _SHARE_OF_CHECKS * self._time_s:
                self._reserved_s += self._check_s[index]
                kept.append(index)
        return kept

    def _time_for_rounds_s(self) -> float:
        return self._left_s() - self._reserved_s

    def _too_dear(self) -> list[int]:
        """Choose measurements to drop, the most expensive first, until the rounds fit into the time.

        Only the expensive upper sizes of curves are dropped, and measurements that alone would take a third of the
        time.
        """
        left_s = self._time_for_rounds_s() / (MIN_ROUNDS + 1)
        kept = sorted((i for i, calls in enumerate(self._calls) if calls), key=lambda index: self._cost_s[index])
        dropped = []
        for index in reversed(kept):
            cost_s = self._cost_s[index]
            if self._is_larger_size(index):
                is_dear = cost_s > _CHEAP * self._sample_s
            else:
                is_dear = cost_s * MIN_ROUNDS > self._time_s / 3
            if is_dear and sum(self._cost_s[other] for other in kept) > left_s:
                dropped.append(index)
                kept.remove(index)
        return sorted(dropped)

    def _has_time(self, done: int) -> bool:
        return done < MAX_ROUNDS and self._time_for_rounds_s() > self._round_s * 1.1

    def _num_rounds(self, done: int) -> int:
        if done < MIN_ROUNDS:
            return MIN_ROUNDS
        return min(MAX_ROUNDS, done + max(0, int(self._time_for_rounds_s() / max(self._round_s, 1e-3))))

    def _sample(self, index: int, benchmark: Benchmark) -> None:
        self._threads(benchmark.who)
        self._where.at(self._keys[index])
        turns = range(self.rank_group.size) if benchmark.who == "turns" else range(1)
        for turn in turns:
            self.rank_group.wait()
            if benchmark.who == "turns" and turn != self.rank_group.rank:
                continue
            if not self._takes_part(benchmark) or benchmark.labels.get("members") == () or index in self._failed:
                continue
            try:
                self._repeat(index, benchmark)
            except _FAILURES as error:
                if benchmark.who == "group":  # the other ranks wait for this one in the collective, and end with it
                    raise
                self._failed[index] = _first_line(error)

    def _repeat(self, index: int, benchmark: Benchmark) -> None:
        calls = self._calls[index]
        if self._cost_s[index] < 1:  # otherwise sleeping threads and lowered clocks would be measured
            benchmark.call()
        benchmark.before()
        benchmark.sync()
        began = time.perf_counter()
        for _ in range(calls):
            benchmark.call()
        benchmark.sync()
        took = (time.perf_counter() - began) / calls
        self.found[index].seconds.append(took)
        # The slowest rank's first call decides, so that all ranks of a group make the same calls.
        queued_calls = calls_of(self._first_s[index]) if benchmark.queued is not None else 0
        if benchmark.queued is not None and queued_calls:
            try:
                self.found[index].queued_seconds.append(benchmark.queued(queued_calls, took))
            except RuntimeError:  # the time measured by the host still counts
                self.found[index].queued_seconds.append(None)

    def check_again(self) -> None:
        """Check the results again after all repetitions: a result that was right only at first counts as wrong."""
        for index in self._check_again:
            benchmark = self.benchmarks[index]
            if self._calls[index] and self._takes_part(benchmark):
                self._threads(benchmark.who)
                self._where.at(self._keys[index])
                try:
                    # Also where the result was wrong at first: the other ranks of a group wait for this one.
                    wrong = benchmark.check()
                    self.found[index].wrong = self.found[index].wrong or wrong
                except _FAILURES as error:
                    if benchmark.who == "group":
                        raise
                    self._failed[index] = _first_line(error)
        self._drop_failed()


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _end_alone(why: str) -> None:
    """End this process: the other ranks are in a collective that it has left, and only its end frees them."""
    sys.stderr.write(f"{why}\n")
    sys.stderr.flush()
    os._exit(1)
