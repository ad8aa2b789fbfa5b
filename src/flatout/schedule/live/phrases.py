"""Durations and numbers of GPUs as text for operators."""

from __future__ import annotations


def duration(value_s: float) -> str:
    """Return a duration as `42 s`, `12 min`, `5.2 h` or `3.1 days`."""
    if value_s < 120:
        return f"{value_s:.0f} s"
    if value_s < 7200:
        return f"{value_s / 60:.0f} min"
    if value_s < 2 * 86400:
        return f"{value_s / 3600:.3g} h"
    return f"{value_s / 86400:.3g} days"


def gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"
