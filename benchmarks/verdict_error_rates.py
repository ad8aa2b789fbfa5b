"""How often verdicts are wrong, and how soon they are right: on many machines, on windows of steps, and by other rules.

    python benchmarks/verdict_error_rates.py [--tunings 4000] [--windows 100] [--processes 1] [--out FILE]

Composes `verdict_scenarios.py` (whole tunings on machines of many kinds), `verdict_windows.py` (windows that hold
another part of a period each time, and recorded tunings), and what other rules claim on the same simulated tunings.
Seeds are fixed. Tens of minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import verdict_scenarios, verdict_windows
from benchmarks.verdict_scenarios import NUM_FLOOR, SCENARIOS, Tunings, make_tunings

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

COUNTS = (1, 2, 3, 4, 6, 8, 12, 20)  # fresh trials of the candidate, as in `analyses`


def pairs(tunings: Tunings) -> Floats:
    """Return the log ratios of each fresh trial of the candidate and the baseline after it; (tunings, pairs)."""
    start = NUM_FLOOR + tunings.num_screened + 1
    return tunings.logs[:, start + 1 :: 2] - tunings.logs[:, start::2]


def paired_t(ratios: Floats, level: float = 0.05) -> Flags:
    return np.asarray(stats.ttest_1samp(ratios, 0, axis=1).pvalue < level)


def bootstrap(ratios: Floats, rng: np.random.Generator, resamples: int = 1000) -> Flags:
    """The percentile bootstrap at 95 %."""
    count = ratios.shape[1]
    excludes = np.zeros(len(ratios), dtype=np.bool_)
    for row, values in enumerate(ratios):
        means = values[rng.integers(0, count, (resamples, count))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        excludes[row] = low > 0 or high < 0
    return excludes


def any_of(ratios: Floats, counts: range | tuple[int, ...], test: Callable[[Floats], Flags]) -> float:
    """Return how often the test claims after any of these numbers of pairs."""
    claimed = np.zeros(len(ratios), dtype=np.bool_)
    for count in counts:
        claimed |= test(ratios[:, :count])
    return float(claimed.mean())


def others(count: int) -> dict[str, Any]:
    """What other rules claim: on identical arms each claim is false, on the faster candidate nearly each is true."""
    result: dict[str, Any] = {}
    rng = np.random.default_rng(999)
    for label, speedup in (("identical", 1.0), ("1.1x", 1.1)):
        ratios = pairs(make_tunings(SCENARIOS["white 3 %"], speedup, tunings=count, num_screened=1))
        result[label] = {
            "one trial each, more than 1 % faster wins": float((ratios[:, 0] > math.log(1.01)).mean()),
            "percentile bootstrap, 4 pairs": float(bootstrap(ratios[:, :4], rng).mean()),
            "percentile bootstrap, 10 pairs": float(bootstrap(ratios[:, :10], rng).mean()),
            "paired t at 95 %, 6 pairs": float(paired_t(ratios[:, :6]).mean()),
            "paired t at 95 % after each pair from 3 on": any_of(ratios, range(3, 21), paired_t),
            "paired t at 95 % at these analyses": any_of(ratios, COUNTS[2:], paired_t),
        }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=4000)
    parser.add_argument("--windows", type=int, default=100, help="tunings of each kind of window")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cells, kinds = verdict_scenarios.cells(arguments.tunings), verdict_windows.kinds(arguments.windows)
    results: dict[str, Any] = {"tunings": arguments.tunings, "windows": arguments.windows, "scenarios": {}}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for cell, row in zip(cells, pool.map(verdict_scenarios.Cell.run, cells), strict=True):
            results["scenarios"].setdefault(cell.part, {})[cell.name] = row
        rows = pool.map(verdict_windows.Kind.run, kinds)
        results["of_windows"] = {kind.name: row for kind, row in zip(kinds, rows, strict=True)}
    results["fabric"] = verdict_windows.fabric(10 * arguments.windows)
    results["other_rules"] = others(arguments.tunings // 4)
    text = json.dumps(results, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
