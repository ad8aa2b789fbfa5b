"""Take off what programs write before each line of a log: times, hosts, processes, source files.

In: a line. Out: how severe its program calls it (`E`, `W`, ...; empty if it does not say), and what the line says.
"""

from __future__ import annotations

import re

_MAX_PREFIXES = 8
# Each stands at the beginning of a line. A group is the severity.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[?\d+(?:,\d+)?\]<std(?:err|out)>:\s*",  # mpirun
        r"\[rank\d+\]:?\s*",  # torchrun
        r"\(\w+[^)\n]{0,80}pid=\d+[^)\n]{0,80}\)\s*",  # Ray
        r"\d{1,4}: ",  # srun --label
        r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[.,]?\d*Z?(?:[+-]\d\d:?\d\d)?\]?[:,]?\s*",  # an ISO time
        r"[A-Za-z]{3} +\d+ \d\d:\d\d:\d\d(?: \d{4})?\]?\s*",  # syslog
        r"\[ *\d+\.\d+\]\s*(?:\[[\w.-]+:\d+:\d+\])?\s*",  # the kernel, and UCX
        r"[\w.<>-]+:\d+:\d+ \[\d+\]\s*",  # NCCL
        r"\[?([EWIFC])\d{4} \d\d:\d\d:\d\d(?:\.\d+)?(?: +\d+)*\s*",  # glog
        r"([EWIFC]) ",  # TensorFlow
        r"<?\[?(?:[\w./-]*/)?[\w.-]+\.(?:cc|cpp|hpp|cu|cuh|h|c|go|py|rs)[: ]+\d+\]?>?:?\s*",  # a source file
        r"[\w-]+ kernel: ",
        r": ",
    )
)


def without_prefixes(line: str) -> tuple[str, str]:
    """Return the severity of a line, and the line without its prefixes."""
    severity = ""
    for _ in range(_MAX_PREFIXES):
        match = next((match for prefix in _PREFIXES if (match := prefix.match(line)) is not None), None)
        if match is None:
            break
        severity = (match.lastindex and match[match.lastindex]) or severity
        line = line[match.end() :]
    return severity, line
