"""Follow a growing ledger. In: its path. Out: the totals of the lines so far, for the metrics of the job."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flatout.input_files import open_file
from flatout.keep.account import CLASSES
from flatout.keep.ledger import LedgerAccumulator, Totals
from flatout.keep.step_breakdown import PARTED
from flatout.watch.exporter.page import MetricPage


class LedgerTail:
    """A growing ledger, read incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._rest = b""
        self._totalling = LedgerAccumulator()

    def totals(self) -> Totals:
        """Read what was added since the last call, and return the totals."""
        with suppress(OSError), open_file(self._path) as file:
            file.seek(self._place)
            added = file.read()
            self._place += len(added)
            *lines, self._rest = (self._rest + added).split(b"\n")
            for line in lines:
                self._totalling.add(line)
        return self._totalling.totals()


def add_ledger(page: MetricPage, totals: Totals) -> None:
    """Add how the job's device time was used, and how often it failed."""
    for name in CLASSES:
        if name in PARTED and not totals.known_share(name):  # its time is counted inside another class
            continue
        text = "Device time of the job by class, in seconds."
        page.counter("flatout_device_seconds", text, totals.ns.get(name, 0) / 1e9, **{"class": name})
    page.counter("flatout_attempts", "Attempts of the job.", totals.num_attempts)
    page.counter("flatout_failures", "Failed attempts, excluding hangs.", totals.num_failures)
    page.counter("flatout_hangs", "Attempts that hung.", totals.num_hangs)
    if totals.num_devices is not None:
        page.gauge("flatout_devices", "Number of devices held by the job.", totals.num_devices)
    if totals.goodput is not None:
        page.gauge("flatout_goodput_ratio", "Share of device time in which new steps were made.", totals.goodput)
