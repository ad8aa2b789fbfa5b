"""`flatout run --config`: the first steps are compared with the tuning, and a set of changes that hurts is reverted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.keep.beating import Clock, Rank
from tests.keep.conftest import ahead
from tests.keep.test_nodes import later, pair
from tests.keep.test_rules import PEER_GONE, evidence, failed

import flatout as package
from flatout.change.catalogue import all_changes
from flatout.change.combine import combine
from flatout.emit import tuned_toml
from flatout.errors import UsageError
from flatout.keep.attempt import AttemptResult
from flatout.keep.expectation import (
    LEAST_WINDOW_S,
    LEAST_WINDOW_STEPS,
    NUM_WINDOWS,
    WARMUP_STEPS,
    ExpectationWatch,
    observed,
)
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.keep.job_identity import JobIdentity
from flatout.keep.ledger import LedgerFile
from flatout.keep.peer_board import PeerBoard
from flatout.keep.supervise import Restarts, StepProgress, keep_alive
from flatout.launch import ExitStatus
from flatout.records.change import JobFacts
from flatout.records.expectation import ObservedSteps, StepExpectation
from flatout.records.tuning import Tuning
from flatout.records.verdict import Verdict
from flatout.report.expectation_text import expectation_sentence, other_scale_sentence
from flatout.run import RunRequest, prepare, run
from flatout.run.tuning_check import TuningCheck

JOB = Path(__file__).parents[1] / "jobs" / "keep_job.py"
SOURCE = str(Path(package.__file__).parents[1])
TUNED = StepExpectation(low_s=0.09, high_s=0.11, without_s=0.13, num_ranks=2, device="cpu")
FACTS = JobFacts(num_ranks=2, ranks_per_host=2, num_hosts=1, cores_allowed=2.0, num_numa_nodes=1, device="cpu")


def verdict(**values: Any) -> Verdict:
    defaults: dict[str, Any] = {
        "verdict": "better",
        "objective": "step_s",
        "speedup": 1.28,
        "mean_speedup": 1.3,
        "interval": (1.2, 1.4),
        "best_case": 1.4,
        "error_rate": 0.05,
        "min_effect": 0.01,
        "num_pairs": 4,
        "num_void": 0,
        "void_reasons": (),
        "order": "AB BA AB BA",
        "next_analysis": None,
        "reason": "",
    }
    return msgspec.convert(defaults | values, Verdict)


def tuned_file(
    path: Path, *, step_s: float | None, num_ranks: int = 2, num_hosts: int | None = None, **values: Any
) -> Path:
    """Write the tuned.toml of a tuning that accepted one harmless change."""
    change = next(each for each in all_changes(FACTS) if each.environment and not each.launch)
    hosts = {} if num_hosts is None else {"num_hosts": str(num_hosts)}
    tuning = Tuning(
        command=("torchrun", "keep_job.py"),
        changes=combine([change], FACTS),
        verdict=verdict(**values),
        step_s=step_s,
        machine={"device": "cpu", "num_ranks": str(num_ranks)} | hosts,
    )
    path.write_text(tuned_toml.emit(tuning).text)
    return path


def test_the_file_of_a_tuning_says_what_a_step_should_take(tmp_path: Path) -> None:
    expectation = tuned_toml.read(tuned_file(tmp_path / "tuned.toml", step_s=0.1)).expectation()
    assert expectation is not None
    assert expectation.without_s == pytest.approx(0.13)
    assert (expectation.low_s, expectation.high_s) == pytest.approx((0.13 / 1.4, 0.13 / 1.2))
    assert (expectation.num_ranks, expectation.device) == (2, "cpu")


@pytest.mark.parametrize(
    "values",
    [
        {"step_s": None},  # a file of an earlier version
        {"step_s": 0.1, "interval": None},
        {"step_s": 0.1, "objective": "peak_memory_bytes"},
        {"step_s": 0.1, "interval": (1.4, 1.5)},  # the mean is not in it: the file was edited
    ],
)
def test_a_file_that_does_not_say_it_gives_no_expectation(tmp_path: Path, values: dict[str, Any]) -> None:
    assert tuned_toml.read(tuned_file(tmp_path / "tuned.toml", **values)).expectation() is None


@pytest.mark.parametrize(
    ("step_s", "outcome"),
    [(0.05, "as_tuned"), (0.109, "as_tuned"), (0.111, "not_as_tuned"), (0.129, "not_as_tuned"), (0.131, "regression")],
)
def test_steps_without_noise_are_judged_at_the_limits(step_s: float, outcome: str) -> None:
    result = observed([step_s] * NUM_WINDOWS, TUNED, num_steps=50)
    assert (result.outcome, result.step_s, result.low_s) == (outcome, step_s, step_s)


def test_noise_widens_the_interval_and_a_few_long_windows_do_not_decide() -> None:
    noisy = [0.08, 0.19] * (NUM_WINDOWS // 2)  # its median is slower than without the changes, and is not sure
    assert observed(noisy, TUNED, num_steps=50).outcome == "as_tuned"
    with_evaluations = [0.1] * (NUM_WINDOWS - 3) + [0.5] * 3
    assert observed(with_evaluations, TUNED, num_steps=50).outcome == "as_tuned"


def watched(tmp_path: Path, patch: pytest.MonkeyPatch, step_s: float, looks: int) -> list[ObservedSteps | None]:
    """Look after each step of two ranks at a watch."""
    clock = Clock()
    ranks = [Rank(tmp_path / "beats", number, 2, clock, patch) for number in range(2)]
    reader = HeartbeatReader(tmp_path / "beats")
    watch = ExpectationWatch(TUNED)
    results = []
    for _ in range(looks):
        for rank in ranks:
            rank.spends("compute", round(step_s * 1e9))
            rank.steps()
        results.append(watch.look(ranks_of(reader.read())))
    reader.close()
    return results


@pytest.mark.parametrize(("step_s", "window_steps"), [(0.3, LEAST_WINDOW_STEPS), (0.1, round(LEAST_WINDOW_S * 10))])
def test_steps_are_compared_once_after_the_warm_up_and_ten_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float, window_steps: int
) -> None:
    needed = WARMUP_STEPS + NUM_WINDOWS * window_steps
    results = watched(tmp_path, monkeypatch, step_s, needed + 30)
    (place,) = [number for number, result in enumerate(results, 1) if result is not None]
    assert needed <= place <= needed + NUM_WINDOWS  # a window can need one more step to reach its second
    result = results[place - 1]
    assert result is not None
    assert result.step_s == pytest.approx(step_s)


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def checked(
    tmp_path: Path, patch: pytest.MonkeyPatch, *, step_s: float, reverts: bool = True, expectation: Any = TUNED
) -> tuple[list[str], list[dict[str, Any]], list[int]]:
    """Check ranks that write a checkpoint every tenth step; return what it said and wrote, and where it ends."""
    clock, said = Clock(), Said()
    ranks = [Rank(tmp_path / "beats", number, 2, clock, patch) for number in range(2)]
    reader = HeartbeatReader(tmp_path / "beats")
    writer = LedgerFile(tmp_path / "ledger.jsonl")
    alone = PeerBoard(None, "n1", JobIdentity(name=None, spans_nodes=False, node_key="", job_key=""))
    check = TuningCheck(expectation, writer, nodes=alone, reverts=reverts, device=None, num_nodes=1, say=said)
    ends = []
    for step in range(1, 200):
        for rank in ranks:
            rank.spends("compute", round(step_s * 1e9))
            rank.steps()
            if step % 10 == 0:
                rank.spends("checkpoint", 1_000_000)
                rank.beat.set("num_checkpoints", step // 10)
        samples = ranks_of(reader.read())
        check.look(samples)
        if check.ends_attempt(samples):
            ends.append(step)
    reader.close()
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    return said, lines, ends


def test_a_regression_ends_the_attempt_at_the_next_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, lines, ends = checked(tmp_path, monkeypatch, step_s=0.2)
    assert said[0].startswith("the changes do not help here: 200 ms per step")
    assert [line["event"] for line in lines] == ["tuning_check", "reverted"]
    assert (lines[0]["outcome"], lines[0]["reverts"]) == ("regression", True)
    found_at = WARMUP_STEPS + lines[0]["num_steps"]
    (end,) = ends
    assert end == (found_at // 10 + 1) * 10


@pytest.mark.parametrize(("step_s", "reverts"), [(0.12, True), (0.1, True), (0.2, False)])
def test_a_gain_that_is_only_smaller_and_a_warning_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float, reverts: bool
) -> None:
    said, lines, ends = checked(tmp_path, monkeypatch, step_s=step_s, reverts=reverts)
    assert ends == []
    assert [line["reverts"] for line in lines] == [False]
    assert len(said) == 1 + (step_s == 0.2)


def test_on_another_scale_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = msgspec.structs.replace(TUNED, num_ranks=8)
    said, lines, ends = checked(tmp_path, monkeypatch, step_s=0.2, expectation=other)
    assert said == ["the gain of the tuning is not checked: it was measured on 8 ranks, not 2"]
    assert ([line["outcome"] for line in lines], ends) == (["not_compared"], [])


def test_another_device_and_other_nodes_are_another_scale() -> None:
    gpu = msgspec.structs.replace(TUNED, device="NVIDIA H100", num_nodes=2)
    assert other_scale_sentence(gpu, num_ranks=2, num_nodes=2, device="NVIDIA H200") is not None
    assert other_scale_sentence(gpu, num_ranks=2, num_nodes=2, device="NVIDIA H100") is None
    assert other_scale_sentence(gpu, num_ranks=2, num_nodes=None, device=None) is None
    other = other_scale_sentence(gpu, num_ranks=2, num_nodes=1, device=None)
    assert other == "the gain of the tuning is not checked: it was measured on 2 nodes, not 1"


def test_each_outcome_has_a_sentence_with_its_numbers() -> None:
    for step_s in (0.1, 0.12, 0.2):
        sentence = expectation_sentence(observed([step_s] * NUM_WINDOWS, TUNED, num_steps=50), TUNED)
        assert f"{step_s * 1000:.0f} ms per step" in sentence
        assert "90.0 ms to 110 ms with the changes, 130 ms without them" in sentence


def test_reverting_needs_changes_and_a_way_to_resume() -> None:
    with pytest.raises(UsageError, match=r"goes back from the changes of a tuned\.toml"):
        RunRequest(command=("a",), on_regression="revert").check()
    with pytest.raises(UsageError, match="nothing says how the job resumes"):
        RunRequest(command=("a",), config=Path("tuned.toml"), on_regression="revert").check()
    resumes = {"checkpoint": Path("c.pt"), "resume_arguments": ("--resume",)}
    RunRequest(command=("a",), config=Path("tuned.toml"), on_regression="revert", **resumes).check()  # type: ignore[arg-type]


class Attempts:
    """In place of the runner of attempts: the first one loses its peers, the second one ends well."""

    def __init__(self, is_reverting: Any) -> None:
        self.is_reverting = is_reverting
        self._codes = [1, 0]

    def run(self, *_: object, **__: object) -> AttemptResult:
        code = self._codes.pop(0)
        failures = (failed("RuntimeError", PEER_GONE),) if code else ()
        ended = ExitStatus(code=code, signal=None, start_unix_s=0.0, end_unix_s=1.0)
        return AttemptResult(ended=ended, evidence=evidence(code=code, failures=failures), ranks=())


@pytest.mark.parametrize("has_reverted", [True, False])
def test_ranks_that_lost_those_of_a_node_that_went_back_use_up_no_restart(tmp_path: Path, has_reverted: bool) -> None:
    """The other node's word is heard once per second, and its ranks are gone sooner."""
    first, second, clock = pair(tmp_path)
    writer, said = LedgerFile(tmp_path / "ledger.jsonl"), Said()
    check = TuningCheck(TUNED, writer, nodes=second, reverts=True, device=None, num_nodes=2, say=said)
    assert not check.ends_attempt(())
    if has_reverted:
        first.reverts()
    else:
        first.fails("rank 0 raised ValueError")
    later(clock, second)
    ended = keep_alive(
        Attempts(check.ends_attempt),  # type: ignore[arg-type]
        Restarts(0),
        StepProgress(),
        next_words=lambda *_: ("job",),
        environment={},
        state=tmp_path,
        book=Mock(),
        say=said,
        nodes=second,
    )
    writer.close()
    assert ended.code == (0 if has_reverted else 1)
    went_back = "n1 restarts the job without the changes: so does this node"
    assert said == [went_back] if has_reverted else went_back not in said
    assert ("reverted" in (tmp_path / "ledger.jsonl").read_text()) is has_reverted


def test_reverting_on_several_nodes_needs_a_folder_in_which_they_hear_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = RunRequest(
        command=("torchrun", "--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint=n1:29500", "keep_job.py"),
        config=tuned_file(tmp_path / "tuned.toml", step_s=0.1),
        on_regression="revert",
        ledger=tmp_path / "ledger.jsonl",
        checkpoint=tmp_path / "ckpt.pt",
        resume_arguments=("--resume",),
    )
    with pytest.raises(UsageError, match="on several nodes needs a ledger folder"):
        run(request, prepare(request, {}))
    assert not (tmp_path / "ledger.jsonl").exists()


def run_job(folder: Path, options: Sequence[str], *, num_steps: int, **tuned: Any) -> str:
    """Run steps of 20 ms on two ranks with a tuned.toml, and return what was said."""
    config = tuned_file(folder / "tuned.toml", **tuned)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "TORCHELASTIC"))}
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    job = (str(JOB), f"--out={folder / 'out'}", f"--steps={num_steps}", "--save_every=20")
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "run", "--config", str(config), *options, "--", *launcher, *job],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=folder,
        env={**inherited, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def reverted(folder: Path) -> tuple[Path, str]:
    resumes = ("--resume-arg=--init_from=resume", f"--checkpoint={folder / 'out' / 'ckpt.pt'}")
    options = ["--on-regression=revert", "--ledger", str(folder / "ledger.jsonl"), *resumes]
    return folder, run_job(folder, options, num_steps=700, step_s=0.001)


@ahead(reverted)
def test_a_job_that_is_slower_than_tuned_goes_back_and_computes_the_same(ran: Any) -> None:
    folder, stderr = ran
    assert "the changes do not help here: " in stderr
    assert "a checkpoint was written: the job is restarted without the changes" in stderr
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines if line["event"] not in ("seconds", "saving")]
    assert events == ["run", "attempt", "tuning_check", "reverted", "attempt", "end"]
    rows = [line.split() for line in (folder / "out" / "losses-0.txt").read_text().splitlines()]
    losses: dict[int, set[str]] = {}
    for step, loss in rows:
        losses.setdefault(int(step), set()).add(loss)
    assert sorted(losses) == list(range(700))
    assert all(len(values) == 1 for values in losses.values()), "steps that were made again have the same losses"
    assert len(rows) - 700 < 60, "it goes back soon after a checkpoint"


def test_a_plain_run_says_that_another_scale_is_not_compared(tmp_path: Path) -> None:
    stderr = run_job(tmp_path, [], num_steps=40, step_s=0.001, num_ranks=4)
    assert "the gain of the tuning is not checked: it was measured on 4 ranks, not 2" in stderr


def test_the_check_can_be_turned_off(tmp_path: Path) -> None:
    stderr = run_job(tmp_path, ["--on-regression=off"], num_steps=10, step_s=0.001, num_ranks=4)
    assert "the gain of the tuning" not in stderr
