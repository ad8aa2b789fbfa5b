"""How a check says that it cannot judge, or that there is nothing to judge."""

from __future__ import annotations


class NotReadError(Exception):
    """What a check needs was not read, or says nothing certain: the result is `unknown`, with this reason."""


class NotHereError(Exception):
    """There is nothing of that kind on the machine: the result is `info`, with this reason."""
