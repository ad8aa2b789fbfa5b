"""Results in the formats of CI systems and of services that keep results: one file for each format.

In: `Reported` measures. Out: text. `FORMATS` has a writer by the name of each format.
"""

from __future__ import annotations

from collections.abc import Callable

from flatout.records.tracking import Reported
from flatout.report.ci_formats.bencher import bencher
from flatout.report.ci_formats.benchmark_action import benchmark_action
from flatout.report.ci_formats.github import github
from flatout.report.ci_formats.junit import junit
from flatout.report.ci_formats.markdown import markdown

FORMATS: dict[str, Callable[[Reported], str]] = {
    "junit": junit,
    "github": github,
    "markdown": markdown,
    "bmf": bencher,
    "benchmark-action": benchmark_action,
}
