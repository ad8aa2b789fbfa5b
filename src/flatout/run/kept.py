"""A job that `flatout run` keeps alive: its ledger, the monitoring of its ranks, and its restarts.

In: a `RunRequest` and its prepared command. Out: how the job ended. The decisions are made in `keep`; this combines its
parts together for one request and reports what happens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flatout import __version__
from flatout.change.launchers import launch_value, launched_program
from flatout.errors import FlatoutError, UsageError
from flatout.inside.protocol import Variable
from flatout.keep.attempt import AttemptRunner
from flatout.keep.clocks import ClockWatch
from flatout.keep.hang import Hang
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.hosts import goes_on_without_host, least_nodes, without_host
from flatout.keep.job_identity import script_of
from flatout.keep.ledger_merge import open_own, own_ledger
from flatout.keep.ledger_writer import LedgerWriter
from flatout.keep.other_runs import about_this
from flatout.keep.peer_board import LOST_AFTER_S, PeerBoard
from flatout.keep.previous_runs import earlier_of, start_of
from flatout.keep.redact import redactor
from flatout.keep.step_breakdown import StepBreakdown, StepShares
from flatout.keep.supervise import BadHost, Restarts, StepProgress, keep_alive
from flatout.launch import ExitStatus
from flatout.probe.nvml import Gpus
from flatout.probe.power_limits import PowerLimits
from flatout.records.watch import ExporterRequest, PeakTime
from flatout.report.command import command_line
from flatout.run.adapting import Adapting
from flatout.run.command import PreparedCommand, prepare
from flatout.run.messages import say
from flatout.run.other_jobs import settle_with_others
from flatout.run.request import RunRequest
from flatout.run.resume import resuming
from flatout.run.several_nodes import count_nodes, identify, spans_nodes
from flatout.run.tuning_check import TuningCheck
from flatout.run.unsaved_order import OrderNotice
from flatout.secrets import Masker
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.exporter.labels import job_labels
from flatout.watch.exporter.process import serving

if TYPE_CHECKING:
    from flatout.run.recorded_steps import RecordedSteps


class KeptRun:
    """One request, from the check for other jobs to the end of the last attempt."""

    def __init__(
        self, request: RunRequest, prepared: PreparedCommand, environment: dict[str, str], state: Path
    ) -> None:
        """Check for other jobs and open the ledger. `state` is a folder for this run alone.

        Raises InputError for an unusable recording or ledger, and if another job is in the way; UsageError if the nodes
        of a job could not revert its changes together.
        """
        self._request = request
        self._prepared = prepared
        command = prepared.command
        self._command = tuple(command)  # changes when a host is excluded, and when the changes are reverted
        self._environment = environment
        self._variables = dict(prepared.variables)  # set by the changes, as long as they are applied
        self._state = state
        self._masker = Masker(environment, command)
        self._mask_hosts = redactor() if request.redacts else str
        self._others_continue = goes_on_without_host(launch_value(self._command, "torchrun", "--nnodes", environment))
        self._start = start_of(os.environ, launch_value(self._command, "torchrun", "--rdzv-id", environment))
        self._spans_nodes = spans_nodes(self._command, environment)
        self._shared = request.ledger if request.ledger is not None and request.ledger.is_dir() else None
        if request.on_regression == "revert" and self._spans_nodes and self._shared is None:
            raise UsageError(
                "`--on-regression revert` on several nodes needs a ledger folder, by which each node learns of it",
                hint="pass an existing folder that all nodes see: --ledger FOLDER",
            )
        self._identity = identify(self._command, environment, self._start, spans=self._spans_nodes)
        self._recorded = self._recorded_steps()
        node = self._clean(os.uname().nodename)
        is_taken_over = self._settle_with_others(node)
        ledger = request.ledger if request.ledger is not None else state / "ledger.jsonl"
        self._writer, node = open_own(ledger, node, clean=self._clean)
        self._previous = earlier_of(self._writer.path, self._start, node=node, job_key=self._identity.job_key)
        is_later_start = self._start is not None and bool(self._start.number)  # by Slurm's count, if there is no ledger
        self._resumes = is_taken_over or self._previous is not None or is_later_start
        self._progress = StepProgress(self._previous)
        self._gpus = Gpus()
        self._nodes = PeerBoard(
            self._shared,
            node,
            self._identity,
            others_go_on=self._others_continue,
            clean=self._clean,
        )
        self._order_notice = OrderNotice(LatestHeartbeats(state).latest_attempt, lambda text: say(self._clean(text)))
        self._adapting = self._new_adapting()
        self._book = self._ledger_book(node, self._recorded.shares if self._recorded is not None else None)
        self._tuning_check = self._new_tuning_check()

    def run(self) -> ExitStatus:
        """Run the job to the end of its last attempt."""
        self._report_resumption()
        try:
            ended = self._keep_alive()
        finally:
            self._nodes.ends()
            if self._adapting is not None:
                self._adapting.close()
        self._close()
        return ended

    def _clean(self, text: str) -> str:
        """Mask secrets, and host names if requested."""
        return self._mask_hosts(self._masker.text(text))

    def _recorded_steps(self) -> RecordedSteps | None:
        if self._request.recording is None:
            return None
        from flatout.run.recorded_steps import recorded_steps  # imports everything that a diagnosis needs

        return recorded_steps(self._request.recording)

    def _peak_time(self) -> PeakTime | None:
        return self._recorded.peak_time if self._recorded is not None else None

    def _num_nodes(self) -> int:
        return count_nodes(self._command, self._environment)

    def _known_num_nodes(self) -> int | None:
        """Return the number of nodes of the job; None if its command does not say it."""
        num_nodes = self._num_nodes()
        return None if self._spans_nodes and num_nodes == 1 else num_nodes

    def _settle_with_others(self, node: str) -> bool:
        request = self._request
        checkpoints = (request.checkpoint, request.checkpoint_folder)
        mine = about_this(
            command_line(self._command),
            tuple(path for path in checkpoints if path is not None),
            own_ledger(request.ledger, node) if request.ledger is not None else None,
            is_part=self._spans_nodes,
            job=self._start.job if self._start is not None else None,
            script=self._clean(script_of(launched_program(self._command))),
        )
        mine = msgspec.structs.replace(mine, expectation=self._prepared.expectation, peak_time=self._peak_time())
        return settle_with_others(mine, self._state, takes_over=request.takes_over, clean=self._clean)

    def _ledger_book(self, node: str, recorded: StepShares | None) -> LedgerWriter:
        facts = self._gpus.facts()
        names = [str(gpu["name"]) for gpu in facts if "name" in gpu]
        clocks = ClockWatch(self._gpus.clocks) if not self._gpus.problem else None
        return LedgerWriter(
            self._writer,
            self._progress,
            num_devices=self._request.num_gpus or _num_visible(len(facts), self._environment) or None,
            command=command_line(self._command),
            tool=__version__,
            node=node,
            gpu=names[0] if names else None,
            within=StepBreakdown(clocks=clocks, no_clocks=self._gpus.problem or "", recorded=recorded),
            start=self._start,
            job_key=self._identity.job_key,
            earlier=self._previous,
            goes_on=self._resumes,
        )

    def _new_tuning_check(self) -> TuningCheck | None:
        """Return the check of the tuning's gain, if there is one to check."""
        expectation, mode = self._prepared.expectation, self._request.on_regression
        if expectation is None or mode == "off":
            return None
        names = [str(gpu["name"]) for gpu in self._gpus.facts() if "name" in gpu]
        return TuningCheck(
            expectation,
            self._writer,
            nodes=self._nodes,
            reverts=mode == "revert",
            device=names[0] if names else None,
            num_nodes=self._known_num_nodes(),
            say=lambda text: say(self._clean(text)),
        )

    def _report_resumption(self) -> None:
        previous = self._previous
        if previous is None or self._start is None:
            return
        most = self._request.max_restarts
        say(
            f"resuming {self._start.job}: start {previous.num_starts + 1}, step {previous.farthest} reached,"
            f" {min(previous.num_restarts, most)} of {most} restarts used"
        )

    def _keep_alive(self) -> ExitStatus:
        request = self._request
        xids = self._gpus.xids()
        watched = AttemptRunner(
            hang_after_s=request.hang_after_s,
            watches_hangs=request.watches_hangs,
            on_look=self._on_sample,
            on_hang=self._on_hang,
            on_problem=lambda problem: say(f"job monitoring stopped on an internal error: {problem}"),
            read_xids=lambda: [entry["number"] for entry in xids.read() or ()],
            nodes=self._nodes,
            is_reverting=self._ends_attempt,
        )
        restarts = Restarts(
            request.max_restarts,
            others_go_on=self._others_continue,
            earlier=self._previous,
            machine_code=request.machine_code,
        )
        with ExitStack() as stack:
            try:
                if request.metrics is not None:
                    stack.enter_context(serving(self._exporter_request(*request.metrics), say))
                return keep_alive(
                    watched,
                    restarts,
                    self._progress,
                    next_words=self._next_command,
                    environment=self._environment,
                    state=self._state,
                    book=self._book,
                    say=lambda text: say(self._clean(text)),
                    nodes=self._nodes,
                    settles=self._adapting.settles if self._adapting is not None else lambda judgement, done: None,
                )
            except FlatoutError as error:  # the command cannot be started, or the port is taken
                self._writer.write("end", code=error.exit_code, why=str(error))
                raise
            except KeyboardInterrupt:  # before the command was started; once it runs, the interrupt is passed on to it
                self._writer.write("end", code=130, why="it was interrupted")
                raise

    def _exporter_request(self, address: str, port: int) -> ExporterRequest:
        labels = job_labels(script_of(launched_program(self._command)))
        expectation = self._prepared.expectation
        return ExporterRequest(
            ledger=str(self._writer.path),
            state=str(self._state),
            address=address,
            port=port,
            labels=msgspec.structs.replace(
                labels, job=self._clean(labels.job), job_id=self._clean(labels.job_id), host=self._clean(labels.host)
            ),
            otlp=self._request.otlp,
            peak_time=self._peak_time(),
            promised_step_s=None if expectation is None else (expectation.low_s + expectation.high_s) / 2,
        )

    def _on_sample(self, ranks: Sequence[HeartbeatSample]) -> None:
        self._book.look(ranks)
        if self._adapting is not None:
            self._adapting.look(ranks)
        if self._request.max_restarts or self._request.resume_arguments:
            self._order_notice.look(ranks)
        if self._tuning_check is not None:
            self._tuning_check.look(ranks)
        for node in self._nodes.newly_lost():
            say(f"no status from {node} for {LOST_AFTER_S:.0f} s: node or network down")
        for node in self._nodes.new_namesakes():
            name = self._clean(str(self._identity.name))
            say(f"{node} runs another job named {name} (another command or meeting point): its reports are ignored")

    def _new_adapting(self) -> Adapting | None:
        request = self._request
        if request.adapts == "off":
            return None
        nnodes = launch_value(self._command, "torchrun", "--nnodes", self._environment)
        return Adapting(
            request.adapts,
            self._command,
            state=self._state,
            micro_batch_options=request.micro_batch_options,
            nodes=self._nodes,
            least_nodes=least_nodes(nnodes) if self._others_continue else None,
            spans_nodes=self._spans_nodes,
            is_semantic=request.adapts_semantic,
            patches=self._own_patches(),
            power_limits=PowerLimits() if request.adapts_power else None,
            say=lambda text: say(self._clean(text)),
            ledger=self._writer,
        )

    def _ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end the attempt: the tuning is reverted, or this node leaves the job."""
        if self._tuning_check is not None and self._tuning_check.ends_attempt(ranks):
            return True
        return self._adapting is not None and self._adapting.ends_attempt(ranks)

    def _on_hang(self, hang: Hang) -> None:
        say(self._clean(hang.describe()))
        has_ledger = self._request.ledger is not None  # which gets the stacks of all threads
        stacks = hang.main_threads() if has_ledger else _all_threads(hang)
        for stack in stacks:
            say(self._clean(stack.strip()), prefix="")
        self._book.hangs(hang)

    def _next_command(self, attempt: int, bad_host: BadHost | None) -> Sequence[str]:
        if bad_host is not None:
            self._leave(bad_host)
        if self._tuning_check is not None and self._tuning_check.is_reverted:
            self._drop_changes()
        self._choose_checkpoint_interval()
        command: Sequence[str] = self._command
        if self._adapting is not None:
            command = self._adapting.command(command)
            self._set_patches(self._adapting.patches(self._own_patches()))
        if attempt or self._resumes:
            return resuming(command, self._request.resume_arguments, self._request.checkpoint)
        return command

    def _own_patches(self) -> str | None:
        """Return the patches of the changes as long as they are applied, else those of the environment here."""
        return self._variables.get(Variable.PATCHES) or os.environ.get(Variable.PATCHES)

    def _set_patches(self, patches: str | None) -> None:
        self._environment.pop(Variable.PATCHES, None)
        if patches is not None:
            self._environment[Variable.PATCHES] = patches

    def _drop_changes(self) -> None:
        """Go back to the command and the environment without the changes, for all further attempts."""
        unchanged = prepare(replace(self._request, config=None), os.environ)
        self._command = unchanged.command
        self._variables.clear()
        for name in self._prepared.variables:
            self._environment.pop(name, None)
            if name in os.environ:
                self._environment[name] = os.environ[name]
        self._tuning_check = None

    def _leave(self, host: BadHost) -> None:
        """Exclude the host from the next attempts if the allocation has a spare node."""
        elsewhere = without_host(self._command, host.name, self._environment)
        if elsewhere is not None:
            self._command = elsewhere
            reason = "it is at fault" if host.is_sure else "it failed twice in a row for an unknown cause"
            say(self._clean(f"{host.name} is excluded: {reason}"))
        elif host.is_sure:
            job = self._environment.get("SLURM_JOB_ID")
            requeue = f"; `scontrol requeue {job}` moves the job to other nodes" if job else ""
            say(self._clean(f"{host.name} failed, and there is no spare node{requeue}"))

    def _choose_checkpoint_interval(self) -> None:
        folder = self._request.checkpoint_folder
        if folder is None:
            return
        from flatout.run.checkpoint_interval import CheckpointInterval  # imports scipy

        interval = CheckpointInterval(folder, self._writer)
        self._environment.update(interval.variables(os.environ, num_nodes=self._num_nodes()))

    def _close(self) -> None:
        folder = self._request.checkpoint_folder
        if folder is not None:
            from flatout.run.checkpoint_interval import CheckpointInterval

            CheckpointInterval(folder, self._writer).report_improvements(num_nodes=self._num_nodes())
        self._writer.close()
        if self._writer.problem is not None:
            say(f"the ledger is incomplete: {self._writer.problem}")


def _num_visible(num_gpus: int, environment: dict[str, str]) -> int:
    """Count the GPUs of this host that the job may use."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return num_gpus
    return min(num_gpus, len([name for name in listed.split(",") if name.strip()]))


def _all_threads(hang: Hang) -> list[str]:
    return [f"rank {rank}:\n{stack}" for rank, stack in sorted(hang.stacks.items())]
