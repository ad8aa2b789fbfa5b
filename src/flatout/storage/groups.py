"""Read the pressure (PSI) and the memory of a host and of a control group.

In: texts of `/proc/pressure`, `*.pressure`, `meminfo`, `vmstat`, `memory.stat` and `memory.events`. Out: numbers; None
if the text does not have them. Sources: Documentation/accounting/psi.rst and admin-guide/cgroup-v2.rst of Linux. Where
the kernel was started without PSI, the files do not exist or cannot be read.
"""

from __future__ import annotations

import re

from flatout.storage.counts import MAX_DIGITS

_TOTAL = re.compile(r"^some .*\btotal=(\d{1,30})\b", re.MULTILINE)
_US_PER_S = 1e6
_KIB = 1024


def stalled_s(text: str) -> float | None:
    """Return the seconds so far in which some process waited for the resource."""
    match = _TOTAL.search(text)
    return float(match[1]) / _US_PER_S if match else None


def field(text: str, name: str) -> float | None:
    """Return the value of a line `name value`."""
    match = re.search(rf"^{re.escape(name)} (\d{{1,30}})\s*$", text, re.MULTILINE)
    return float(match[1]) if match else None


def available_bytes(meminfo: str) -> float | None:
    """Return the memory that programs and the page cache can still take."""
    match = re.search(r"^MemAvailable:\s+(\d{1,30}) kB", meminfo, re.MULTILINE)
    return float(match[1]) * _KIB if match else None


def number(text: str) -> float | None:
    """Return the number that is all of a text; None for `max`."""
    stripped = text.strip()
    return float(stripped) if stripped.isdecimal() and len(stripped) <= MAX_DIGITS else None
