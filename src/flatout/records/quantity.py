"""Quantities as Kubernetes writes them: `94500m` of CPU, `1900Gi` of memory.

`parse_quantity` takes the whole notation; the writers use only `m`, `Mi` and `Gi`.
"""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_LARGEST = 2**63 - 1  # Kubernetes' own limit
_MIB = 1 << 20


def parse_quantity(text: str) -> Fraction:
    """Return the value of a quantity that is not negative. Raises ValueError for anything else, and above 2^63 - 1."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, suffix = Fraction(match[1]), match[2] or ""
    value = number * _factor(suffix)
    if value > _LARGEST:
        raise ValueError(text)
    return value


def _factor(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(1024) ** (_BINARY.index(suffix) + 1)
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return Fraction(10) ** exponent


def cpu_text(cpu_m: int) -> str:
    """Return thousandths of a core as a quantity: `48` or `47500m`."""
    return f"{cpu_m}m" if cpu_m % 1000 else str(cpu_m // 1000)


def memory_text(size_bytes: int) -> str:
    """Return bytes as a quantity, rounded down to MiB: `900Gi` or `972800Mi`."""
    mib = size_bytes // _MIB
    return f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"
