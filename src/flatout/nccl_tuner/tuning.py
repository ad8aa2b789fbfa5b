"""Tune NCCL by measuring: the settings of the process, then the choices by size, then the whole table once more.

In: the work to measure, a transport, and how ranks are started. Out: `NcclTuning`, with a table in a file and the
variables that apply it. The job itself is not started here: whether its step becomes faster is for `tune` to judge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.input_files import read_end
from flatout.nccl_tuner.build import built_plugin
from flatout.nccl_tuner.candidates import Space, find_space, process_starts, start_of_choices, starts_of_table
from flatout.nccl_tuner.choose import against_tuner, best_start, choose_rows, confirmed, without_lost_rows
from flatout.nccl_tuner.measure import Ranks, Say, XidSource, measure, require_some
from flatout.nccl_tuner.nccl_log import parse_log, table_problems
from flatout.nccl_tuner.plan import SimulatedFabric
from flatout.nccl_tuner.settings import table_variables
from flatout.nccl_tuner.table_file import table_text
from flatout.nccl_tuner.vendor_tuners import displaced_tuner
from flatout.records.collective_table import CollectiveTable
from flatout.records.nccl_tuning import (
    DEFAULT,
    CollectiveWork,
    Measurements,
    NcclCandidate,
    NcclTuning,
    SizeResult,
    Start,
)
from flatout.report.files import write_new

TABLE_FILE = "nccl-table.txt"
NUM_TURNS, ROUNDS_OF_TURN = 4, 3  # of starts that are compared with each other
NUM_ROUNDS = 12  # of the choices, which are compared within one start
_SHARES = {"starts": 0.4, "choices": 0.3, "table": 0.3}  # of the time
_MAX_LISTED = 3  # cases in a note
_MAX_LOG_BYTES = 64 << 20


class TuningRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure."""

    backend: str
    transport: str
    num_ranks: int
    work: CollectiveWork
    folder: Path
    time_s: float
    fabric: SimulatedFabric | None = None
    uses_plugin: bool = True
    reports: bool = True  # False in all but one of several processes that a launcher has started
    force: bool = False


def tune_nccl(
    request: TuningRequest,
    say: Say,
    environment: Mapping[str, str] = os.environ,
    xids: XidSource | None = None,
) -> NcclTuning:
    """Measure and choose. Writes the table if it has rows and this process reports.

    Raises FlatoutError if nothing could be measured, and OutputError if the table cannot be written.
    """
    return _Tuning(request, say, environment, xids).run()


class _Tuning:
    def __init__(
        self, request: TuningRequest, say: Say, environment: Mapping[str, str], xids: XidSource | None
    ) -> None:
        self.request, self.say, self.xids = request, say, xids
        self.environment = environment
        self.notes: list[str] = list(request.work.notes)
        self.vendor = self._displaced_tuner()
        self.space = find_space(request.transport)
        self.plugin = self._plugin(self.space)
        self.measured: list[Measurements] = []

    def run(self) -> NcclTuning:
        settings, comparison = DEFAULT, None
        variables: dict[str, str] = {}
        starts = process_starts(self.space)
        if len(starts) > 1:
            measured = self._measure(starts, NUM_TURNS, ROUNDS_OF_TURN, "starts")
            comparison = best_start(measured, starts, self.request.work, ROUNDS_OF_TURN)
            if comparison is not None:
                settings = comparison.key[0]
                variables = next(start.environment for start in starts if start.name == settings)
        choices = start_of_choices(self.space, settings, variables, has_plugin=self.uses_table)
        measured = self._measure([choices], 1, NUM_ROUNDS, "choices")
        table, sizes, others = choose_rows(measured, choices, self.request.work)
        self._note_others(others)
        if table.rows:
            table, sizes = self._confirm(table, sizes, settings, variables)
        return self._result(
            NcclTuning(
                backend=self.request.backend,
                transport=self.request.transport,
                software=measured.software,
                work=self.request.work,
                num_candidates=len(starts) + len(choices.candidates) - 2,
                num_rounds=NUM_ROUNDS,
                settings=variables,
                settings_speedup=comparison.speedup if comparison is not None else None,
                settings_interval=(comparison.low, comparison.high) if comparison is not None else None,
                table=table,
                sizes=sizes,
            )
        )

    @property
    def uses_table(self) -> bool:
        return self.plugin is not None or (self.request.fabric is not None and self.request.uses_plugin)

    def _plugin(self, space: Space) -> Path | None:
        """Return the plugin, built if necessary; None if it is not used."""
        if self.request.backend != "nccl" or not space.choice or not self.request.uses_plugin:
            return None
        return built_plugin(self.environment)

    def _displaced_tuner(self) -> str | None:
        """Describe the tuner that Flatout's plugin would displace; None if there is none."""
        if self.request.fabric is not None:
            return self.request.fabric.vendor_tuner
        return displaced_tuner(self.environment) if self.request.backend == "nccl" else None

    def _measure(
        self, starts: Sequence[Start], num_turns: int, num_rounds: int, part: str, logs: Path | None = None
    ) -> Measurements:
        request = self.request
        ranks = Ranks(backend=request.backend, num_ranks=request.num_ranks, plugin=self.plugin, fabric=request.fabric)
        measured = measure(
            ranks,
            starts,
            request.work,
            num_turns=num_turns,
            num_rounds=num_rounds,
            time_s=request.time_s * _SHARES[part],
            environment=self.environment,
            say=self.say,
            xids=self.xids,
            logs=logs,
        )
        require_some(measured)
        self.measured.append(measured)
        return measured

    def _note_others(self, others: Sequence[NcclCandidate]) -> None:
        """Report options of a communicator that were better: a job sets them in its own code."""
        for candidate in others:
            if candidate.max_ctas is not None:
                self.notes.append(
                    f"{candidate.name} were better at some sizes: flatout tune tries nccl-ctas={candidate.max_ctas},"
                    f" or set config.min_ctas and config.max_ctas of ProcessGroupNCCL.Options() to"
                    f" {candidate.min_ctas} and {candidate.max_ctas}"
                )
            else:
                self.notes.append(
                    f"{candidate.name} was better at some sizes, but a job cannot be given it from outside"
                )

    def _confirm(
        self, table: CollectiveTable, sizes: tuple[SizeResult, ...], settings: str, variables: dict[str, str]
    ) -> tuple[CollectiveTable, tuple[SizeResult, ...]]:
        """Measure the whole table against its settings alone, and drop the rows that do not win again."""
        starts = starts_of_table(table_text(table), settings, variables)
        logs = self.request.folder / "nccl-log"
        if self.request.backend == "nccl":
            logs.mkdir(parents=True, exist_ok=True)
        measured = self._measure(starts, NUM_TURNS, ROUNDS_OF_TURN, "table")
        sizes = confirmed(
            measured, sizes, default=(DEFAULT, DEFAULT), chosen=("table", "table"), num_rounds=ROUNDS_OF_TURN
        )
        if self.vendor is not None and not self._beats_the_tuner(measured, self.vendor):
            return CollectiveTable(), sizes
        if self.request.backend == "nccl" and not self._took_effect(starts[1:], logs, table, measured):
            return CollectiveTable(), sizes
        return without_lost_rows(table, sizes)

    def _beats_the_tuner(self, measured: Measurements, vendor: str) -> bool:
        """Whether the table is faster than the tuner that it displaces, with a note of the result.

        In the measurement of the whole table, the default is started without Flatout's plugin, so that tuner chooses.
        """
        work = self.request.work
        total, slower = against_tuner(
            measured, work, ROUNDS_OF_TURN, default=(DEFAULT, DEFAULT), chosen=("table", "table")
        )
        shown = "too few turns" if total is None else f"{total.speedup:.2f}x, {total.low:.2f} to {total.high:.2f}"
        is_better = total is not None and total.is_better and not slower
        if is_better:
            self.notes.append(f"the table displaces {vendor}, and was faster than it ({shown})")
            return True
        reason = f"was not shown to be faster than it ({shown})"
        if slower:
            cases = [work.cases[number] for number in slower]
            listed = ", ".join(f"{case.collective} of {case.num_bytes} bytes" for case in cases[:_MAX_LISTED])
            reason = f"is slower than it for {listed}"
        self.notes.append(f"no table is kept: Flatout's tuner plugin would displace {vendor}, and {reason}")
        return False

    def _took_effect(self, starts: Sequence[Start], logs: Path, table: CollectiveTable, measured: Measurements) -> bool:
        """Run the table once with NCCL's log: False if the log shows that NCCL did something else, with a note."""
        self._measure(starts, 1, 1, "table", logs)
        files = sorted(logs.glob("nccl-*.log"))
        if not files:
            self.notes.append("NCCL wrote no log, so it is unknown whether the table took effect")
            return True
        log = parse_log(read_end(files[0], max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace"))
        shape = self.request.work.shapes[0]
        problems = table_problems(log, table, shape.num_ranks, measured.num_nodes[0])
        if not problems:
            self.notes.append("NCCL's log shows that the table took effect")
            return True
        self.notes += [f"no table is kept, because it did not take effect: {problem}" for problem in problems[:3]]
        return False

    def _result(self, tuning: NcclTuning) -> NcclTuning:
        wrong = {(each.start, each.candidate): each for measured in self.measured for each in measured.wrong}
        not_measured = {name: reason for measured in self.measured for name, reason in measured.not_measured.items()}
        tuning = msgspec.structs.replace(
            tuning, wrong=tuple(wrong.values()), not_measured=not_measured, notes=tuple(self.notes)
        )
        if not tuning.table.rows:
            return msgspec.structs.replace(tuning, environment=tuning.settings)
        path = (self.request.folder / TABLE_FILE).absolute()
        comments = [
            f"measured by flatout tune nccl over {tuning.transport}, {tuning.software}; {tuning.work.source}",
            "* in ranks and nodes: any; in max_bytes: without limit; in the last three columns: NCCL's own choice",
        ]
        if self.request.reports:
            write_new(path, table_text(tuning.table, comments), force=self.request.force)
        variables = table_variables(path, self.plugin) if self.plugin is not None else {}
        return msgspec.structs.replace(tuning, table_file=str(path), environment={**tuning.settings, **variables})


def check_ranks(backend: str, num_ranks: int, num_gpus: int) -> None:
    """Raise UsageError if this machine cannot run this number of ranks."""
    if num_ranks < 2:
        raise UsageError(f"`--ranks` must be at least 2, because a rank alone has no collectives, but got {num_ranks}")
    if backend == "nccl" and num_gpus < 2:
        raise UsageError(
            f"NCCL is measured on at least 2 GPUs, but this machine has {num_gpus}",
            hint="--backend gloo measures CPU ranks, and --fabric FILE rehearses with a simulated fabric",
        )
    if backend == "nccl" and num_ranks > num_gpus:
        raise UsageError(f"`--ranks` must be at most the number of GPUs, {num_gpus}, but got {num_ranks}")
