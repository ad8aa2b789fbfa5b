"""Errors by which a check reports that it cannot judge, or that there is nothing to judge."""

from __future__ import annotations


class NotReadError(Exception):
    """A value that a check needs was not read, or is uncertain: the result is `unknown`, with the reason."""


class NotHereError(Exception):
    """The machine has no such device or feature: the result is `info`, with the reason."""
