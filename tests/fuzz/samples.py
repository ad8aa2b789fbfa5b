"""The files of one valid input, which the fuzzer damages one of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A valid input: files by their paths, and which of these paths is given to the reader ("": their folder)."""

    files: Mapping[str, bytes]
    given: str = ""
    fixed: frozenset[str] = frozenset()  # files that are not damaged
