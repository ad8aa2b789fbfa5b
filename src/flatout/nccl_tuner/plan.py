"""What the ranks are given to measure: one start, and for how long."""

from __future__ import annotations

import msgspec

from flatout.records.nccl_tuning import DEFAULT, CollectiveWork, Start


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of a collective in a simulated fabric: `latency_s + num_bytes / bytes_per_s`, for one candidate."""

    candidate: str = DEFAULT
    settings: str | None = None  # of the process; None: with any
    collective: str | None = None  # None: of every collective
    latency_s: float
    bytes_per_s: float
    is_hanging: bool = False  # it never ends
    is_wrong: bool = False  # an all-gather comes in the wrong order, and sums are off by one

    def seconds(self, num_bytes: int) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


VENDOR = "vendor"  # the candidate of a law: NCCL's choice with a vendor's tuner, which Flatout's plugin displaces


class SimulatedFabric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated fabric with a known law, to rehearse a tuning on ranks without GPUs."""

    transport: str
    noise: float = 0.0  # relative standard deviation of a sample
    seed: int = 0
    vendor_tuner: str | None = None  # in words; it chooses by the laws of the candidate `vendor`
    law: tuple[Law, ...]

    def law_of(self, settings: str, candidate: str, collective: str) -> Law | None:
        """Return the law that fits with the most conditions, wherever it stands in the file.

        Settings count before the collective, and of two such laws the first one counts. None: the candidate behaves
        like the default.
        """
        fitting = [
            law
            for law in self.law
            if law.candidate == candidate and law.settings in (None, settings) and law.collective in (None, collective)
        ]
        return max(fitting, key=lambda law: (law.settings is not None, law.collective is not None), default=None)


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank reads on its standard input."""

    backend: str  # nccl, gloo or simulated
    start: Start
    work: CollectiveWork
    first_round: int
    num_rounds: int
    time_s: float
    folder: str  # for tables; on this host
    meeting: str = ""  # differs between the starts of one command
    meeting_file: str | None = None  # None: the ranks were started by a launcher, and meet at its address
    plugin: str | None = None
    fabric: SimulatedFabric | None = None
