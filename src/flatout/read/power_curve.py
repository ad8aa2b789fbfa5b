"""Read a CSV of measured power caps into `PowerSample`s.

    dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power

in the format of Zeus; the last three are in W, s and W. Every other column is part of the configuration. `dataset`,
`network`, `model` and `workload` identify the workload; without any of them, each configuration is a separate workload.
"""

from __future__ import annotations

import math
from pathlib import Path

from flatout.errors import InputError
from flatout.read.csv_rows import Row, csv_rows
from flatout.records.power import PowerSample

NUMBERS = ("power_limit", "time_per_epoch", "average_power")
_WORKLOAD = ("dataset", "network", "model", "workload")


def read_power_curve(path: Path) -> tuple[PowerSample, ...]:
    """Read the file. Raises InputError (one line, with the line number) if a number is missing or not valid."""
    hint = "docs/how-to/cost.md says how to measure a curve"
    samples = tuple(_sample(path, line, row) for line, row in csv_rows(path, NUMBERS, hint=hint))
    if not samples:
        raise InputError(f"`{path}` has a header and no measurement")
    return samples


def _sample(path: Path, line: int, row: Row) -> PowerSample:
    numbers = []
    for name in NUMBERS:
        try:
            number = float(row[name] or "")
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise InputError(f"`{path}`, line {line}: {name} must be a number above 0, but is `{row[name] or ''}`")
        numbers.append(number)
    # DictReader stores the extra cells of a row that is too long under None.
    keys = [(str(name), value or "") for name, value in row.items() if name not in NUMBERS and isinstance(value, str)]
    configuration = tuple(value for _, value in keys)
    workload = tuple(value for name, value in keys if name.casefold() in _WORKLOAD)
    return PowerSample(
        configuration=configuration,
        workload=workload or configuration,
        limit_w=numbers[0],
        time_s=numbers[1],
        power_w=numbers[2],
    )
