"""Run and monitor one attempt of a job: start it, read its ranks' heartbeats, end it if it hangs -> `AttemptResult`.

The launcher that the user's command names starts the job, with one more environment variable. Only processes with this
attempt's folder in their environment are ever signalled: those that the attempt started, and their descendants.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from flatout.inside.protocol import Variable
from flatout.keep.busy import work_of
from flatout.keep.evidence import Evidence, count_oom_kills, evidence_of, failures_of
from flatout.keep.exits import Death, StderrFile
from flatout.keep.flight import ask_flight, dumps_since
from flatout.keep.hang import Hang
from flatout.keep.hang_timeout import HangTimeout
from flatout.keep.hang_watch import HangWatch
from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.keep.pass_on import WARNINGS, PassOn
from flatout.keep.peer_board import PeerBoard
from flatout.keep.stacks import ask_stacks, loader_stacks
from flatout.keep.trace_requests import TraceRequests
from flatout.launch import ExitStatus, end_marked, run_local, with_environment
from flatout.secrets import masked_command

_ENDS = (1, 2, 3, 15)  # SIGHUP, SIGINT, SIGQUIT, SIGTERM
_LOOK_EVERY_S = 0.25
_GRACE_S = 5.0  # between SIGTERM and SIGKILL of a job that hangs
_SHOWN = 120  # maximum characters of a command in messages
_LINGER_S = 2.0  # time that helpers of an ended job have to exit


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    ended: ExitStatus
    evidence: Evidence
    ranks: tuple[HeartbeatSample, ...]
    is_reverted: bool = False  # ended on purpose at a checkpoint, to restart the job without its changes
    left: tuple[str, ...] = ()  # PID and arguments of each process left running by a command that exited with code 0


class AttemptRunner:
    """Runs attempts. `on_look` is called with the ranks four times per second, `on_hang` before a hung job is ended."""

    def __init__(
        self,
        *,
        hang_after_s: float | None,
        watches_hangs: bool,
        on_look: Callable[[Sequence[HeartbeatSample]], object],
        on_hang: Callable[[Hang], object],
        read_xids: Callable[[], Sequence[int]] = lambda: (),
        on_problem: Callable[[str], object] = lambda text: None,
        nodes: PeerBoard | None = None,
        is_reverting: Callable[[Sequence[HeartbeatSample]], bool] = lambda ranks: False,
    ) -> None:
        self._hang_after_s = hang_after_s
        self._watches_hangs = watches_hangs
        self._on_look = on_look
        self._on_hang = on_hang
        self._read_xids = read_xids
        self._on_problem = on_problem
        self._nodes = nodes
        self.trace_requests = TraceRequests(nodes)
        self.is_reverting = is_reverting  # asked after each look: whether to end the attempt to revert the changes
        self.was_asked_to_end = False

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        reached: Callable[[HeartbeatSample], int | None],
    ) -> AttemptResult:
        """Run the command once. `folder` is this attempt's empty folder; `reached` returns a rank's training step."""
        attempt = _Attempt(self, folder)
        self._read_xids()  # earlier Xids do not belong to this attempt
        ended = run_local(
            words,
            {**environment, Variable.HEARTBEAT: str(folder)},
            watch=attempt.look,
            on_signal=self._asked,
            pass_on=dict.fromkeys(WARNINGS, attempt.pass_on),
        )
        return attempt.result(ended, environment, reached)

    def _asked(self, number: int) -> None:
        self.was_asked_to_end = self.was_asked_to_end or number in _ENDS

    def new_watch(self, folder: Path) -> HangWatch:
        """Return the hang detector for one attempt."""
        return HangWatch(
            HangTimeout(self._hang_after_s),
            lambda pulses: ask_stacks(folder, pulses),
            work_of,
            lambda pulse: loader_stacks(folder, pulse),
            lambda pulses: ask_flight(folder, pulses),
            self._nodes.others if self._nodes is not None else lambda: (),
        )

    def read_xids(self) -> Sequence[int]:
        """Return the Xids since the last call."""
        return self._read_xids()

    def report_look(self, ranks: Sequence[HeartbeatSample], watch: HangWatch) -> bool:
        """Report the ranks to the ledger and the other nodes; return whether another node has given up the job."""
        self._on_look(ranks)
        if self._nodes is None:
            return False
        self._nodes.look(lambda: watch.told(ranks))
        return bool(self._nodes.given_up())

    def find_hang(
        self, watch: HangWatch, now: float, ranks: Sequence[HeartbeatSample], *, is_failing: bool
    ) -> Hang | None:
        """Return a hang, and report it, if hangs are watched for."""
        if not self._watches_hangs or self.was_asked_to_end:
            return None
        hang = watch.look(now, ranks, is_failing=is_failing)
        if hang is not None:
            self._on_hang(hang)
        return hang

    def report_problem(self, error: Exception) -> None:
        """Report an error of Flatout itself, after which the attempt is not watched any more."""
        self._on_problem(f"{type(error).__name__}: {error}")


class _Attempt:
    """Observations of one attempt while it runs."""

    def __init__(self, runner: AttemptRunner, folder: Path) -> None:
        self.pass_on = PassOn(folder)
        self._runner = runner
        self._folder = folder
        self._beats = HeartbeatReader(folder)
        self._deaths = _Deaths()
        self._stderr = StderrFile()
        self._began_unix_s = time.time()
        self._oom_kills_before = count_oom_kills()
        self._watch = runner.new_watch(folder)
        self._hang: Hang | None = None
        self._is_reverted = False
        self._xids: list[int] = []
        self._next_look = 0.0
        self._is_blind = False

    def look(self, _: int) -> None:
        """Look at the job, many times per second."""
        if self._is_blind:
            return
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - our own error must not orphan the job
            self._is_blind = True
            self._runner.report_problem(error)

    def _look(self) -> None:
        self._deaths.look()
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_S
        pulses = self._beats.read()
        ranks = ranks_of(pulses)
        self._deaths.follow(pulses)
        self._xids.extend(self._runner.read_xids())
        is_given_up = self._runner.report_look(ranks, self._watch)
        self._runner.trace_requests.look(self._folder)
        if is_given_up and not any(pulse.is_alive for pulse in ranks):
            end_attempt(self._folder)  # its agent waits for a node that will not join
        if self._runner.is_reverting(ranks):
            self._is_reverted = True
            end_attempt(self._folder)
            return
        if self._hang is None:
            is_failing = bool(failures_of(self._folder, pulses))
            self._hang = self._runner.find_hang(self._watch, now, ranks, is_failing=is_failing)
            if self._hang is not None:
                end_attempt(self._folder)

    def result(
        self, ended: ExitStatus, environment: Mapping[str, str], reached: Callable[[HeartbeatSample], int | None]
    ) -> AttemptResult:
        """Return how the attempt ended once its first process has ended; end its remaining processes."""
        was_asked_to_end = self._runner.was_asked_to_end
        pulses = self._beats.read()
        self._deaths.follow(pulses)
        self._deaths.look()
        is_in_order = ended.code == 0 and self._hang is None and not was_asked_to_end
        left = left_running(self._folder) if is_in_order else ()
        if not is_in_order:
            end_attempt(self._folder)
        self._xids.extend(self._runner.read_xids())
        ranks = ranks_of(pulses)
        self._beats.close()
        evidence = evidence_of(
            ended,
            ranks,
            self._folder,
            deaths=self._deaths.found,
            hang=self._hang,
            was_asked_to_end=was_asked_to_end,
            oom_kills=(self._oom_kills_before, count_oom_kills()),
            xids=tuple(self._xids),
            flight_records=tuple(str(path) for path in dumps_since(self._began_unix_s, environment)),
            step_of=reached,
            last_lines=tuple(self._stderr.lines()),
            has_native_lines=self._stderr.is_file,
            was_warned=self.pass_on.was_recent(),
        )
        return AttemptResult(
            ended=ended, ranks=tuple(ranks), left=left, evidence=evidence, is_reverted=self._is_reverted
        )


def end_attempt(folder: Path) -> int:
    """End the remaining processes of an attempt, such as ranks of a killed launcher, and return their number."""
    return end_marked(lambda environment: environment.get(Variable.HEARTBEAT) == str(folder), grace_s=_GRACE_S)


def left_running(folder: Path) -> tuple[str, ...]:
    """Return the processes left running by a command with exit code 0, which put them in the background on purpose."""
    found: tuple[str, ...] = ()
    until = time.monotonic() + _LINGER_S
    while True:
        processes = with_environment(lambda environment: environment.get(Variable.HEARTBEAT) == str(folder))
        found = tuple(words for process in processes if (words := _words(process)) is not None)
        if not found or time.monotonic() >= until:
            return found
        time.sleep(_LOOK_EVERY_S)


def _words(process: psutil.Process) -> str | None:
    try:
        return f"{process.pid} ({shlex.join(masked_command(process.cmdline()))[:_SHOWN]})"
    except psutil.Error:
        return None


class _Deaths:
    """The time at which each rank was first seen to have ended; it distinguishes the first from those killed later."""

    def __init__(self) -> None:
        self._alive: dict[str, int] = {}
        self._seen_alive_s: dict[str, float] = {}
        self.found: dict[str, Death] = {}  # by process name

    def follow(self, pulses: Sequence[HeartbeatSample]) -> None:
        for pulse in pulses:
            if pulse.rank is not None and pulse.name not in self.found and pulse.is_local:
                self._alive[pulse.name] = pulse.pid

    def look(self) -> None:
        now = time.monotonic()
        for name, pid in list(self._alive.items()):
            end = _end_of(pid, now)
            if end is None:
                self._seen_alive_s[name] = now
                continue
            del self._alive[name]
            self.found[name] = end._replace(alive_at=self._seen_alive_s.get(name))


def _end_of(pid: int, now: float) -> Death | None:
    """Return how the process has ended, which the kernel keeps until the parent reaps it; None if it has not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return Death(now, None)
    if fields[0] not in "ZX":
        return None
    status = int(fields[49])
    return Death(now, status & 0x7F, status >> 8 & 0xFF)
