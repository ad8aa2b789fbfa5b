"""Read a CSV of a grid's emissions by the hour into `CarbonHours`.

    hour,g_per_kwh
    2026-12-01T00:00,412
    2026-12-01T01:00,398

`hour` is the beginning of each hour, without a gap, in one time zone; or a number from 0 to 23, each once, for a day
that repeats. Other columns are ignored.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from flatout.errors import InputError
from flatout.read.csv_rows import csv_rows
from flatout.records.carbon import CarbonHours

_COLUMNS = ("hour", "g_per_kwh")
MOST_G_PER_KWH = 3000.0  # of lignite, twice over
_HOURS_OF_DAY = 24
_MOST_ROWS = 24 * 366


def read_carbon_hours(path: Path) -> CarbonHours:
    """Read the file. Raises InputError (one line, with the line number) for a gap or a value that makes no sense."""
    rows: list[tuple[str, float]] = []
    for line, row in csv_rows(path, _COLUMNS):
        rows.append(((row["hour"] or "").strip(), _amount(path, line, row["g_per_kwh"])))
        if len(rows) > _MOST_ROWS:
            raise InputError(f"`{path}` must have at most {_MOST_ROWS:,} hours, a year, but has more")
    if not rows:
        raise InputError(f"`{path}` has a header and no hour")
    if all(hour.isdecimal() and len(hour) <= 2 for hour, _ in rows):
        return _day(path, rows)
    _check_gaps(path, [hour for hour, _ in rows])
    hours, amounts = zip(*rows, strict=True)
    return CarbonHours(hours=hours, g_per_kwh=amounts, is_daily=False)


def _amount(path: Path, line: int, text: str | None) -> float:
    try:
        amount = float(text or "")
    except ValueError:
        amount = math.nan
    if not 0 <= amount <= MOST_G_PER_KWH:
        rule = f"g_per_kwh must be a number from 0 to {MOST_G_PER_KWH:,.0f}"
        raise InputError(f"`{path}`, line {line}: {rule}, but is `{text or ''}`")
    return amount


def _day(path: Path, rows: list[tuple[str, float]]) -> CarbonHours:
    by_hour = {int(hour): amount for hour, amount in rows}
    if len(rows) != _HOURS_OF_DAY or set(by_hour) != set(range(_HOURS_OF_DAY)):
        raise InputError(
            f"`{path}` must have each hour of a day from 0 to 23 once, but has {len(rows)} rows",
            hint="write dates as 2026-12-01T00:00 for hours that do not repeat",
        )
    hours = tuple(f"{hour:02d}:00" for hour in range(_HOURS_OF_DAY))
    return CarbonHours(hours=hours, g_per_kwh=tuple(by_hour[hour] for hour in range(_HOURS_OF_DAY)), is_daily=True)


def _check_gaps(path: Path, hours: list[str]) -> None:
    times = []
    for line, hour in enumerate(hours, 2):
        try:
            times.append(datetime.fromisoformat(hour))
        except ValueError:
            raise InputError(
                f"`{path}`, line {line}: hour must be 0 to 23 or 2026-12-01T00:00, but is `{hour}`"
            ) from None
    if len({time.tzinfo is None for time in times}) > 1:
        raise InputError(f"`{path}` must name the time zone of each hour or of none")
    for line, (before, after) in enumerate(pairwise(times), 3):
        if after - before != timedelta(hours=1):
            distance = f"{(after - before).total_seconds() / 3600:g} h"
            raise InputError(f"`{path}`, line {line}: must be 1 h after line {line - 1}, but is {distance} after it")
