"""Choose from measured times: the settings of the process, and the rows of a table.

In: samples of the default and of candidates. Out: what was shown to be better than the default, by case. A candidate
is better if the lower end of the interval of its speedup is above `1 + MIN_EFFECT`. The intervals hold simultaneously
for all comparisons (Bonferroni), so that a candidate that equals the default gets a row in one table of twenty at most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median, stdev

import msgspec

from flatout.records.collective_table import CollectiveTable, TableRow
from flatout.records.nccl_tuning import DEFAULT, CollectiveWork, Measurements, NcclCandidate, SizeResult, Start
from flatout.verdict.student import t_quantile

MIN_EFFECT = 0.02
ERROR_LEVEL = 0.05  # probability that any row of a table is there by chance
MIN_UNITS = 3

Key = tuple[str, str]  # a start and a candidate
_Times = Mapping[Key, Mapping[int, Mapping[int, float]]]  # -> case -> unit -> seconds


class CaseComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate against the default for one case. The interval is one-sided below, simultaneous over all cases."""

    key: Key
    case: int
    default_s: float
    candidate_s: float
    speedup: float
    low: float
    high: float

    @property
    def is_better(self) -> bool:
        return self.low > 1 + MIN_EFFECT


def times_by_round(measurements: Measurements) -> _Times:
    """Return the seconds of each start and candidate, by case and round."""
    times: dict[Key, dict[int, dict[int, float]]] = {}
    for sample in measurements.samples:
        by_case = times.setdefault((sample.start, sample.candidate), {})
        by_case.setdefault(sample.case, {})[sample.round] = sample.seconds
    return times


def times_by_turn(measurements: Measurements, num_rounds: int) -> _Times:
    """Return the median seconds of each turn of a start: its rounds shared one set of processes."""
    by_turn: dict[Key, dict[int, dict[int, float]]] = {}
    for key, by_case in times_by_round(measurements).items():
        for case, by_round in by_case.items():
            turns: dict[int, list[float]] = {}
            for number, seconds in by_round.items():
                turns.setdefault(number // num_rounds, []).append(seconds)
            medians = {turn: median(seconds) for turn, seconds in turns.items()}
            by_turn.setdefault(key, {})[case] = medians
    return by_turn


def compare(times: _Times, default: Key, keys: Iterable[Key]) -> list[CaseComparison]:
    """Compare each of `keys` with the default, for all cases that both have."""
    compared = [
        (key, case, by_unit)
        for key in keys
        for case, by_unit in times.get(key, {}).items()
        if case in times.get(default, {})
    ]
    level = ERROR_LEVEL / max(1, len(compared))
    comparisons = []
    for key, case, by_unit in compared:
        of_default = times[default][case]
        units = sorted(by_unit.keys() & of_default.keys())
        logs = [math.log(of_default[unit] / by_unit[unit]) for unit in units if by_unit[unit] > 0 < of_default[unit]]
        if len(logs) < MIN_UNITS:
            continue
        half = t_quantile(level, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        comparisons.append(
            CaseComparison(
                key=key,
                case=case,
                default_s=median(of_default[unit] for unit in units),
                candidate_s=median(by_unit[unit] for unit in units),
                speedup=math.exp(fmean(logs)),
                low=math.exp(fmean(logs) - half),
                high=math.exp(fmean(logs) + half),
            )
        )
    return comparisons


def total_times(times: _Times, work: CollectiveWork) -> _Times:
    """Return the time of one step's collectives as one case, number -1, or of each size once if they are standard.

    Of standard sizes the mean of the logarithms counts, so that the largest ones do not decide alone.
    """
    totals: dict[Key, dict[int, dict[int, float]]] = {}
    for key, by_case in times.items():
        units = set.intersection(*(set(by_unit) for by_unit in by_case.values())) if by_case else set()
        if len(by_case) < len(work.cases):
            continue
        totals[key] = {-1: {unit: _total(by_case, unit, work) for unit in units}}
    return totals


def _total(by_case: Mapping[int, Mapping[int, float]], unit: int, work: CollectiveWork) -> float:
    if work.is_standard:
        return math.exp(fmean(math.log(by_unit[unit]) for by_unit in by_case.values()))
    return sum((work.cases[case].calls_per_step or 0.0) * by_unit[unit] for case, by_unit in by_case.items())


def best_start(
    measurements: Measurements, starts: Sequence[Start], work: CollectiveWork, num_rounds: int
) -> CaseComparison | None:
    """Return the settings of the process that make the work as a whole fastest; None if the default stays."""
    totals = total_times(times_by_turn(measurements, num_rounds), work)
    default = (DEFAULT, DEFAULT)
    keys = [(start.name, start.candidates[0].name) for start in starts if start.name != DEFAULT]
    better = [comparison for comparison in compare(totals, default, keys) if comparison.is_better]
    return max(better, key=lambda comparison: comparison.speedup, default=None)


def against_tuner(
    measurements: Measurements, work: CollectiveWork, num_rounds: int, *, default: Key, chosen: Key
) -> tuple[CaseComparison | None, tuple[int, ...]]:
    """Compare a whole table with the default, in which another tuner chooses.

    Return the comparison of the work as a whole, and the cases that were shown to be slower with the table: sizes
    without a row lose that tuner too. The comparison is None if too few turns were measured.
    """
    times = times_by_turn(measurements, num_rounds)
    total = next(iter(compare(total_times(times, work), default, [chosen])), None)
    slower = tuple(each.case for each in compare(times, default, [chosen]) if each.high < 1 - MIN_EFFECT)
    return total, slower


def choose_rows(
    measurements: Measurements, start: Start, work: CollectiveWork
) -> tuple[CollectiveTable, tuple[SizeResult, ...], tuple[NcclCandidate, ...]]:
    """Return the table of what was better than the start's default by case, and the result of each case.

    Candidates that a table cannot hold, such as the options of a communicator, are compared too; the best of them is
    in the results, and returned, but not in the table.
    """
    default = (start.name, start.candidates[0].name)
    by_name = {candidate.name: candidate for candidate in start.candidates}
    keys = [(start.name, candidate.name) for candidate in start.candidates[1:]]
    times = times_by_round(measurements)
    best: dict[int, CaseComparison] = {}
    for comparison in compare(times, default, keys):
        if not comparison.is_better:
            continue
        current = best.get(comparison.case)
        if current is None or comparison.speedup > current.speedup:
            best[comparison.case] = comparison
    results = []
    for case, by_unit in sorted(times.get(default, {}).items()):
        results.append(_size_result(case, median(by_unit.values()), best.get(case), work, measurements))
    rows = _rows(best, by_name, work, measurements)
    others = [by_name[comparison.key[1]] for comparison in best.values() if not by_name[comparison.key[1]].has_row]
    distinct = {candidate.name: candidate for candidate in others}
    return CollectiveTable(rows=tuple(rows)), tuple(results), tuple(distinct.values())


def _size_result(
    case: int, default_s: float, comparison: CaseComparison | None, work: CollectiveWork, measurements: Measurements
) -> SizeResult:
    of_case = work.cases[case]
    result = SizeResult(
        collective=of_case.collective,
        num_bytes=of_case.num_bytes,
        num_ranks=work.shapes[of_case.shape].num_ranks,
        num_nodes=measurements.num_nodes[of_case.shape],
        default_s=default_s,
        calls_per_step=of_case.calls_per_step,
    )
    if comparison is None:
        return result
    return msgspec.structs.replace(
        result,
        candidate=comparison.key[1],
        candidate_s=comparison.candidate_s,
        speedup=comparison.speedup,
        interval=(comparison.low, comparison.high),
    )


def _rows(
    best: Mapping[int, CaseComparison],
    by_name: Mapping[str, NcclCandidate],
    work: CollectiveWork,
    measurements: Measurements,
) -> list[TableRow]:
    """Return one row for each run of sizes with the same choice.

    A row reaches half of the way, on a logarithmic scale, to the next size that was measured, and not beyond the
    smallest and the largest one: outside of what was measured, the library chooses. A row names its nodes only where
    two shapes differ in nothing else: NCCL counts GPUs of one host that reach each other only over the network as
    several nodes, and hosts with a common NVLink domain as one.
    """
    rows: list[TableRow] = []
    shapes = _told_apart(work, measurements)
    sizes_of_groups = [work.shapes[shape].num_ranks for shape in shapes]
    for shape in shapes:
        num_ranks = work.shapes[shape].num_ranks
        num_nodes = measurements.num_nodes[shape] if sizes_of_groups.count(num_ranks) > 1 else None
        cases_by_collective: dict[str, list[int]] = defaultdict(list)
        for number, case in enumerate(work.cases):
            if case.shape == shape:
                cases_by_collective[case.collective].append(number)
        for collective, cases in cases_by_collective.items():
            cases.sort(key=lambda number: work.cases[number].num_bytes)
            sizes = [work.cases[number].num_bytes for number in cases]
            choices = [best[number].key[1] if number in best else None for number in cases]
            rows += [
                msgspec.structs.replace(row, num_ranks=num_ranks, num_nodes=num_nodes)
                for row in _rows_of_sizes(collective, sizes, choices, by_name)
            ]
    return rows


def _rows_of_sizes(
    collective: str, sizes: Sequence[int], choices: Sequence[str | None], by_name: Mapping[str, NcclCandidate]
) -> Iterator[TableRow]:
    """Yield one row for each run of sizes, in order, with the same choice of a candidate that has a row."""
    final = len(sizes) - 1
    for first, last in _runs(choices):
        candidate = by_name[choices[first] or ""]
        if not candidate.has_row:
            continue
        yield msgspec.structs.replace(
            candidate.row(collective),
            min_bytes=sizes[0] if first == 0 else _between(sizes[first - 1], sizes[first]) + 1,
            max_bytes=sizes[-1] if last == final else _between(sizes[last], sizes[last + 1]),
        )


def _told_apart(work: CollectiveWork, measurements: Measurements) -> list[int]:
    """Return the shapes that a table can hold: of several with equal ranks and nodes, the first moves most bytes."""
    first: dict[tuple[int, int], int] = {}
    for number, (shape, num_nodes) in enumerate(zip(work.shapes, measurements.num_nodes, strict=True)):
        first.setdefault((shape.num_ranks, num_nodes), number)
    return list(first.values())


def _runs(names: Sequence[str | None]) -> list[tuple[int, int]]:
    """Return the first and last index of each run of equal names that are not None."""
    runs: list[tuple[int, int]] = []
    for index, name in enumerate(names):
        if name is None:
            continue
        if runs and runs[-1][1] == index - 1 and names[index - 1] == name:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _between(smaller: int, larger: int) -> int:
    return math.isqrt(smaller * larger) if smaller else larger // 2


def confirmed(
    measurements: Measurements,
    results: Sequence[SizeResult],
    *,
    default: Key,
    chosen: Key,
    num_rounds: int,
) -> tuple[SizeResult, ...]:
    """Return the results with the speedup of the whole table in a second measurement, without the bias of choosing.

    The samples of a case are those of the same index in `results`.
    """
    times = times_by_turn(measurements, num_rounds)
    speedups = {}
    for case, by_unit in times.get(chosen, {}).items():
        of_default = times.get(default, {}).get(case, {})
        units = by_unit.keys() & of_default.keys()
        if units:
            speedups[case] = math.exp(fmean(math.log(of_default[unit] / by_unit[unit]) for unit in units))
    return tuple(
        msgspec.structs.replace(result, confirmed_speedup=speedups.get(number)) for number, result in enumerate(results)
    )


def without_lost_rows(
    table: CollectiveTable, results: Sequence[SizeResult]
) -> tuple[CollectiveTable, tuple[SizeResult, ...]]:
    """Return the table without the rows that were not faster when they were measured again, and the results."""
    lost = [
        result
        for result in results
        if result.candidate is not None and result.confirmed_speedup is not None and result.confirmed_speedup <= 1.0
    ]

    def is_lost(row: TableRow) -> bool:
        return any(row.applies_to(each.collective, each.num_bytes, each.num_ranks, each.num_nodes) for each in lost)

    return CollectiveTable(rows=tuple(row for row in table.rows if not is_lost(row))), tuple(results)
