"""Changes of what is trained: asked for, from a checkpoint on, measured, and undone at the next one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.keep.beating import Clock, Rank
from tests.keep.test_rules import evidence

from flatout.errors import UsageError
from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.keep.rules import Judgement
from flatout.keep.supervise import REVERTED
from flatout.launch import ExitStatus
from flatout.records.adaptation import SemanticAdaptation
from flatout.report.adaptation_text import semantic_sentence
from flatout.run import RunRequest
from flatout.run.adapt_semantic import (
    LEAST_EXCHANGES,
    LEAST_EXPOSED,
    LEAST_GAIN,
    LEAST_LATE,
    MEASURED_STEPS,
    SETTLING_STEPS,
    SemanticAdapter,
)

MS = 1_000_000
NUM_RANKS = 3
ENOUGH = SETTLING_STEPS + MEASURED_STEPS + 10 * LEAST_EXCHANGES
ENDED = ExitStatus(code=None, signal=15, start_unix_s=0.0, end_unix_s=1.0)
DONE = AttemptResult(ended=ENDED, evidence=evidence(), ranks=(), is_reverted=True)


class Job:
    """Ranks whose steps and exposed communication a test chooses."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, mode: str = "on") -> None:
        self.folder, self.patch = folder, patch
        self.told: list[SemanticAdaptation] = []
        self.adapter = SemanticAdapter(mode, report=self.told.append)  # type: ignore[arg-type]
        self.num_attempts = 0
        self.begin()

    def begin(self) -> None:
        folder = self.folder / f"attempt-{self.num_attempts}"
        self.num_attempts += 1
        clock = Clock()
        self.ranks = [Rank(folder, number, NUM_RANKS, clock, self.patch) for number in range(NUM_RANKS)]
        self.reader = HeartbeatReader(folder)
        self.step = 0

    def run(self, num_steps: int, step_ms: float, exposed_ms: tuple[float, ...]) -> None:
        for _ in range(num_steps):
            self.step += 1
            for rank, exposed in zip(self.ranks, exposed_ms, strict=True):
                rank.spends("compute", int(step_ms * MS))
                rank.steps()
                if self.step % 10 == 0:
                    rank.beat.exchanged(self.step, int(exposed * MS), per_step=1, num_ranks=NUM_RANKS)
            if self.step % 10 == 0:
                self.adapter.look(ranks_of(self.reader.read()))

    def restart_at_checkpoint(self) -> str | None:
        """Write a checkpoint. Return the patches of the attempt that follows."""
        assert not self.adapter.ends_attempt(ranks_of(self.reader.read())), "no checkpoint was written since"
        self.ranks[0].beat.set("num_checkpoints", 1)
        assert self.adapter.ends_attempt(ranks_of(self.reader.read()))
        decision = self.adapter.settles(REVERTED, DONE)
        assert decision is not None and decision.restarts
        self.begin()
        return self.adapter.patches(None)

    @property
    def outcomes(self) -> list[str]:
        return [each.outcome for each in self.told]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


@pytest.mark.parametrize(("share", "is_found"), [(LEAST_EXPOSED - 0.01, False), (LEAST_EXPOSED + 0.01, True)])
def test_long_exchanges_call_for_local_sgd(job: Job, share: float, is_found: bool) -> None:
    job.run(ENOUGH, 100, (100 * share,) * 3)
    assert [each.change for each in job.told] == (["local_sgd"] if is_found else [])


@pytest.mark.parametrize(("share", "is_found"), [(LEAST_LATE - 0.01, False), (LEAST_LATE + 0.01, True)])
def test_a_rank_that_all_others_wait_for_gets_fewer_samples(job: Job, share: float, is_found: bool) -> None:
    job.run(ENOUGH, 100, (5 + 100 * share, 5, 5 + 100 * share))
    assert [(each.change, each.rank) for each in job.told] == ([("work_share", 1)] if is_found else [])


def test_two_late_ranks_are_left_alone(job: Job) -> None:
    job.run(ENOUGH, 100, (5, 25, 5))
    assert job.told == []


def test_the_share_makes_all_ranks_equally_long(job: Job) -> None:
    """The late rank computes for 90 ms and the others for 60: with x, 90 x = 60 (1 + (1 - x) / 2), so x = 3 / 4."""
    job.run(ENOUGH, 100, (40, 10, 40))
    (told,) = job.told
    assert (told.percent, told.expected_gain) == (75, pytest.approx(0.25 * 0.9))
    assert json.loads(job.restart_at_checkpoint() or "") == [
        {"name": "work_share", "parameters": {"rank": 1, "percent": 75}}
    ]
    assert semantic_sentence(told) == (
        "from the next checkpoint on, rank 1 gets 75 % of its samples, and the others the rest (semantic): "
        "the others wait 30 % of the step for rank 1; at most 22 % of the step is gained"
    )


@pytest.mark.parametrize(("gain", "is_kept"), [(LEAST_GAIN + 0.005, True), (LEAST_GAIN - 0.005, False)])
def test_a_change_that_does_not_pay_is_undone_at_the_next_checkpoint(job: Job, gain: float, is_kept: bool) -> None:
    job.run(ENOUGH, 100, (60, 60, 60))
    patches = json.loads(job.restart_at_checkpoint() or "")
    assert patches == [{"name": "local_sgd", "parameters": {"every": 8}}]
    job.run(ENOUGH, 100 * (1 - gain), (0, 0, 0))
    assert job.outcomes == ["change", "changed", "kept" if is_kept else "undo"]
    assert job.told[-1].measured_gain == pytest.approx(gain, abs=0.001)
    if not is_kept:
        assert job.restart_at_checkpoint() is None
        job.run(ENOUGH, 100, (60, 60, 60))
        assert job.outcomes[3:] == ["undone"], "nothing follows"


def test_a_job_that_does_not_start_with_the_change_starts_without_it(job: Job) -> None:
    job.run(ENOUGH, 100, (60, 60, 60))
    assert job.restart_at_checkpoint() is not None
    refused = Judgement(rule="refused-checkpoint", fault="user", restart="no", says="")
    decision = job.adapter.settles(refused, DONE)
    assert decision is not None and decision.restarts
    assert (job.outcomes, job.adapter.patches(None)) == (["change", "changed", "undone"], None)
    assert job.adapter.settles(refused, DONE) is None, "once"


def test_a_failure_later_is_not_its_own(job: Job) -> None:
    job.run(ENOUGH, 100, (60, 60, 60))
    job.restart_at_checkpoint()
    job.run(5, 100, (0, 0, 0))
    done = msgspec.structs.replace(DONE, ranks=tuple(ranks_of(job.reader.read())))
    assert job.adapter.settles(Judgement(rule="crash", fault="unknown", restart="yes", says=""), done) is None


def test_a_dry_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, "dry-run")
    job.run(2 * ENOUGH, 100, (60, 60, 60))
    job.ranks[0].beat.set("num_checkpoints", 1)
    assert job.outcomes == ["would_change"] and not job.adapter.ends_attempt(ranks_of(job.reader.read()))


def test_its_patch_is_added_to_those_of_the_job_which_may_exclude_it(job: Job) -> None:
    own = json.dumps([{"name": "tf32", "parameters": {}}])
    assert not job.adapter.excludes(own) and not job.adapter.excludes(None)
    assert job.adapter.excludes('[{"name": "ddp_hook", "parameters": {"hook": "bf16"}}]')
    job.run(ENOUGH, 100, (60, 60, 60))
    job.restart_at_checkpoint()
    patches = json.loads(job.adapter.patches(own) or "")
    assert [patch["name"] for patch in patches] == ["tf32", "local_sgd"]


def test_it_needs_a_way_to_resume() -> None:
    with pytest.raises(UsageError, match="nothing says how the job resumes"):
        RunRequest(command=("a",), adapts="on", adapts_semantic=True).check()
    RunRequest(command=("a",), adapts="dry-run", adapts_semantic=True).check()
    RunRequest(command=("a",), adapts="on", adapts_semantic=True, checkpoint_folder=Path("saved")).check()
