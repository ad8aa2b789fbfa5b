"""A late node of an elastic job leaves at a checkpoint if the others gain samples per second, and else comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from tests.keep.beating import Clock, Rank
from tests.keep.test_nodes import TORCHRUN
from tests.keep.test_nodes import Clock as BoardClock
from tests.keep.test_rules import evidence

from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.keep.hosts import least_nodes
from flatout.keep.peer_board import PeerBoard, PeerRank
from flatout.keep.rules import ASKED, Judgement
from flatout.keep.supervise import REVERTED, Decision, Restarts, StepProgress, keep_alive
from flatout.launch import ExitStatus
from flatout.records.adaptation import LateNodeAdaptation
from flatout.report.adaptation_text import late_node_sentence
from flatout.run.adapt_nodes import FIRST_STEP, LEAST_EXCHANGES, LEAST_GAIN, MEASURED_STEPS, LateNodeAdapter

MS = 1_000_000
STEP_S = 0.1
NUM_NODES = 4  # of one rank each; the first one is this node
ENDED = ExitStatus(code=None, signal=15, start_unix_s=0.0, end_unix_s=1.0)
DONE = AttemptResult(ended=ENDED, evidence=evidence(), ranks=(), is_reverted=True)


class Job:
    """This node's rank and three boards that tell of the others, whose waits a test chooses."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, mode: str = "on", least: int = 2) -> None:
        self.clock = BoardClock()
        self.own = PeerBoard(folder, "n0", TORCHRUN, others_go_on=True, clock=self.clock)
        self.others = [PeerBoard(folder, f"n{number}", TORCHRUN, clock=self.clock) for number in range(1, NUM_NODES)]
        self.rank = Rank(folder / "attempt-0", 0, NUM_NODES, Clock(), patch)
        self.reader = HeartbeatReader(folder / "attempt-0")
        self.told: list[LateNodeAdaptation] = []
        self.step = 0
        self.rate_after = 1.0  # of the others' step time, once this node has left
        self.stops = False
        self.adapter = LateNodeAdapter(mode, self.own, least, report=self.told.append, wait=self.wait)  # type: ignore[arg-type]

    def run(self, num_exchanges: int, late_ms: float, num_checkpoints: int = 0) -> None:
        """Make steps, with a timed exchange in each tenth of them, in which the others wait `late_ms` longer."""
        for _ in range(num_exchanges):
            for _ in range(10):
                self.step += 1
                self.rank.spends("compute", int(STEP_S * 1e9))
                self.rank.steps()
            self.rank.beat.exchanged(self.step, 5 * MS, per_step=1, num_ranks=NUM_NODES)
            told = PeerRank(
                rank=0,
                steps=self.step,
                phase="compute",
                sequences={},
                world_size=NUM_NODES,
                step_s=STEP_S,
                exchange_step=self.step,
                exposed_s=0.005 + late_ms / 1e3,
                num_checkpoints=num_checkpoints,
            )
            self.tell(told)
            self.adapter.look(ranks_of(self.reader.read()))

    def tell(self, told: PeerRank) -> None:
        self.clock.now += 1.5
        for number, board in enumerate(self.others, 1):
            board.look(lambda number=number: [msgspec.structs.replace(told, rank=number)])  # type: ignore[misc]
        self.own.look(tuple)

    def ends_attempt(self) -> bool:
        return self.adapter.ends_attempt(ranks_of(self.reader.read()))

    def wait(self, seconds: float) -> ExitStatus | None:
        """Let the others make steps without this node."""
        if self.stops:
            return ENDED
        self.step += 10
        ranks = PeerRank(
            rank=0,
            steps=self.step,
            phase="compute",
            sequences={},
            world_size=NUM_NODES - 1,
            step_s=STEP_S * self.rate_after,
        )
        self.tell(ranks)
        return None

    def leave(self) -> Decision | None:
        """Find the node late, write a checkpoint, and end its part."""
        self.run(LEAST_EXCHANGES + 2, late_ms=50)
        assert not self.ends_attempt(), "no checkpoint was written since"
        self.run(1, late_ms=50, num_checkpoints=1)
        assert self.ends_attempt()
        self.step = 0
        return self.adapter.settles(REVERTED, DONE)

    @property
    def outcomes(self) -> Sequence[str]:
        return [each.outcome for each in self.told]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


# Three of four ranks make more samples per second if the step becomes shorter than three quarters.
PAYS_MS = 1e3 * STEP_S * (1 - 0.75 / (1 + LEAST_GAIN))


@pytest.mark.parametrize(("late_ms", "leaves"), [(PAYS_MS - 1, False), (PAYS_MS + 1, True)])
def test_a_node_leaves_only_if_the_others_gain_more_than_its_samples(job: Job, late_ms: float, leaves: bool) -> None:
    job.run(LEAST_EXCHANGES + 5, late_ms=late_ms)
    assert job.outcomes == (["leaves"] if leaves else [])


def test_the_gain_is_worked_out_from_the_waits(job: Job) -> None:
    job.run(LEAST_EXCHANGES + FIRST_STEP // 10, late_ms=50)
    (told,) = job.told
    assert (told.late_s, told.num_ranks_left) == (pytest.approx(0.05), 3)
    assert told.expected_gain == pytest.approx(0.75 / 0.5 - 1)
    assert late_node_sentence(told) == (
        "n0 leaves the job at the next checkpoint: the others wait 50.0 ms of each 100 ms step for it; "
        "3 of 4 ranks would make 50 % more samples per second"
    )


@pytest.mark.parametrize(("least", "leaves"), [(3, True), (4, False)])
def test_a_job_that_needs_all_its_nodes_keeps_them(
    least: int, leaves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch, least=least)
    job.run(LEAST_EXCHANGES + 5, late_ms=50)
    assert bool(job.told) is leaves


def test_too_few_exchanges_say_nothing(job: Job) -> None:
    job.run(LEAST_EXCHANGES + FIRST_STEP // 10 - 2, late_ms=50)
    assert job.told == []


def test_a_dry_run_says_it_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, "dry-run")
    job.run(LEAST_EXCHANGES + 5, late_ms=50)
    job.run(5, late_ms=50, num_checkpoints=1)
    assert job.outcomes == ["would_leave"] and not job.ends_attempt()


def test_a_node_stays_away_if_the_others_gain(job: Job) -> None:
    job.rate_after = 0.5
    decision = job.leave()
    assert decision is not None and not decision.restarts and decision.goes_on
    assert job.outcomes == ["leaves", "left", "kept"]
    assert job.told[-1].measured_gain == pytest.approx(0.5)
    job.clock.now += 1.5
    job.others[0].look(tuple)
    (told,) = [status for status in job.others[0].others() if status.node == "n0"]
    assert told.given_up is not None and "late" in told.given_up


def test_a_node_comes_back_if_that_did_not_pay(job: Job) -> None:
    job.rate_after = 0.75 / (1 + LEAST_GAIN / 2)
    decision = job.leave()
    assert decision is not None and decision.restarts
    assert job.outcomes == ["leaves", "left", "undone"] and job.step >= MEASURED_STEPS
    job.run(LEAST_EXCHANGES + 5, late_ms=50)
    assert job.outcomes[-1] == "undone", "it does not leave again"


def test_a_signal_while_it_is_away_ends_it(job: Job) -> None:
    job.stops = True
    decision = job.leave()
    assert decision is not None and not decision.restarts and job.outcomes == ["leaves", "left"]


@pytest.mark.parametrize(("why", "code"), [("the others continue", 0), (ASKED, 143)])
def test_a_node_that_left_ends_well_and_one_that_was_asked_to_end_as_it_did(
    why: str, code: int, tmp_path: Path
) -> None:
    runner = Mock(run=Mock(return_value=DONE), is_reverting=lambda ranks: False)
    board = PeerBoard(None, "n0", TORCHRUN)
    ended = keep_alive(
        runner,
        Restarts(3),
        StepProgress(),
        next_words=lambda *_: ("job",),
        environment={},
        state=tmp_path,
        book=Mock(),
        say=lambda text: None,
        nodes=board,
        settles=lambda judgement, done: Decision(restarts=False, why=why, goes_on=True),
    )
    assert ended.shell_code == code and runner.run.call_count == 1


def test_other_ends_are_not_its_own(job: Job) -> None:
    failed = Judgement(rule="crash", fault="unknown", restart="yes", says="")
    assert job.adapter.settles(failed, DONE) is None and job.adapter.settles(REVERTED, DONE) is None


@pytest.mark.parametrize(("nnodes", "least"), [("2:4", 2), ("4", None), ("4:4", None), (None, None)])
def test_an_elastic_job_says_how_many_nodes_it_needs(nnodes: str | None, least: int | None) -> None:
    assert least_nodes(nnodes) == least
