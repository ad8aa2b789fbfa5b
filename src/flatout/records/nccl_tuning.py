"""What `flatout tune nccl` measures and finds: candidates, cases, times, and the choice that follows from them."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.collective_table import CollectiveTable, TableRow

DEFAULT = "default"  # the candidate that changes nothing

# Who reads a setting, and so what a candidate needs: new processes, or only a new communicator in the same ones.
Reads = Literal["process", "communicator"]


class NcclCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """Settings to measure for all sizes. A candidate without any is the default."""

    name: str
    environment: dict[str, str] = {}  # variables that the library reads once a process
    algorithm: str | None = None  # these three by the tuner plugin's table
    protocol: str | None = None
    max_channels: int | None = None
    min_ctas: int | None = None  # these two by the options of a communicator, both or neither
    max_ctas: int | None = None
    threads: int | None = None  # of gloo
    table: str = ""  # text of a whole table, to measure what was chosen

    @property
    def has_row(self) -> bool:
        return (self.algorithm, self.protocol, self.max_channels) != (None, None, None)

    @property
    def uses_table(self) -> bool:
        return self.has_row or bool(self.table)

    def row(self, collective: str) -> TableRow:
        """Return a row that applies the candidate to all sizes and groups."""
        return TableRow(
            collective=collective,
            min_bytes=0,
            algorithm=self.algorithm,
            protocol=self.protocol,
            max_channels=self.max_channels,
        )


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the ranks: their processes have this environment, and measure these candidates in turn."""

    name: str
    settings: str = DEFAULT  # the name of these settings of the process, which several starts can share
    environment: dict[str, str] = {}
    candidates: tuple[NcclCandidate, ...]  # the first one is the default of this environment


class GroupShape(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of ranks that are equal in size and communicate at the same time."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def num_ranks(self) -> int:
        return len(self.groups[0])


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in one shape of groups, with one size: that of the larger buffer."""

    collective: str
    shape: int  # index in `Work.shapes`
    num_bytes: int
    calls_per_step: float | None = None  # in the job; None if the size is a standard one


class CollectiveWork(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives to measure."""

    shapes: tuple[GroupShape, ...]
    cases: tuple[Case, ...]
    source: str  # where they come from, in words
    is_standard: bool  # not taken from a job
    notes: tuple[str, ...] = ()


class Repetition(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One repetition: seconds per call of the slowest rank."""

    start: str
    candidate: str
    case: int  # index in `Work.cases`
    round: int
    seconds: float


class WrongAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that gave a wrong result or disturbed a GPU, so that its speed does not count."""

    start: str
    candidate: str
    case: int | None  # None: not one of the cases
    problem: str


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of all starts."""

    samples: tuple[Repetition, ...] = ()
    wrong: tuple[WrongAnswer, ...] = ()
    not_measured: dict[str, str] = {}  # start or candidate -> reason
    backend: str = ""
    software: str = ""
    num_nodes: tuple[int, ...] = ()  # of each shape's groups


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one case: the default, and the candidate that was chosen for it if any."""

    collective: str
    num_bytes: int
    num_ranks: int
    num_nodes: int
    default_s: float
    candidate: str | None = None
    candidate_s: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None  # simultaneous over all comparisons
    confirmed_speedup: float | None = None  # in a second measurement of the whole table
    calls_per_step: float | None = None


class NcclTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `flatout tune nccl`."""

    backend: str
    transport: str
    software: str
    work: CollectiveWork
    num_candidates: int
    num_rounds: int
    settings: dict[str, str] = {}  # environment variables that were measured better for the work as a whole
    settings_speedup: float | None = None
    settings_interval: tuple[float, float] | None = None
    table: CollectiveTable = CollectiveTable()
    sizes: tuple[SizeResult, ...] = ()
    wrong: tuple[WrongAnswer, ...] = ()
    not_measured: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    table_file: str | None = None
    environment: dict[str, str] = {}  # applies settings and table together
