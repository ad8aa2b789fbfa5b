"""The cells of one row of a table of measured runs, as text and as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

_LARGEST = 1e15


class RunRow:
    """One row. An empty or missing cell is an empty text, and has no number."""

    def __init__(self, cells: Mapping[str, str | None]) -> None:
        self._cells = {column: (cell or "").strip() for column, cell in cells.items()}

    def text(self, column: str) -> str:
        return self._cells.get(column, "")

    def lower(self, column: str) -> str:
        return self.text(column).lower()

    def all_lower(self) -> dict[str, str]:
        """Return every cell in lower case, by column."""
        return {column: cell.lower() for column, cell in self._cells.items()}

    def number(self, column: str) -> float | None:
        """Return the number in a cell if it is finite and above 0; otherwise None."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) and value > 0 else None

    def is_possible(self) -> bool:
        """Whether no number in it is larger than any of a model, a machine or a run."""
        numbers = [self.number(column) for column in self._cells]
        return all(number <= _LARGEST for number in numbers if number is not None)

    def whole(self, column: str, default: int = 0) -> int:
        """Return the number in a cell without its fraction, or the default if it is below 1."""
        return int(self.number(column) or 0) or default
