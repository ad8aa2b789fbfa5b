"""A second window is traced at the next stall of a period, on all ranks, and changes nothing of the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.profile.runs import recorded, run, torchrun

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.stall_trace import StallTrace

pytestmark = pytest.mark.usefixtures("warm")


def test_an_evaluation_on_one_rank_is_traced_on_both(tmp_path: Path) -> None:
    command = torchrun("--steps", 132, "--mode", "evaluating")
    plain = run(command)
    # Ranks need 1.5 s of notice before a stall's trace; with a pause in each step, fewer steps take that long.
    recording, done = recorded(tmp_path / "r", [*command, "--pause", "0.05"], "--warmup", "12")
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    windows = {rank.stall_window for rank in recording.ranks}
    (window,) = windows
    assert window is not None and window.period == 12
    assert window.due % 12 == 0 and window.steps == (window.due - 1, window.due, window.due + 1)
    assert window.due > max(recording.ranks[0].traced_steps) + 2
    assert [rank for rank, _ in recording.stall_traces] == [0, 1]

    diagnosis = diagnose_paths([tmp_path / "r"]).diagnosis
    # The first window begins where it is time for it. If that is at an evaluation, its first step takes more than twice
    # as long as the other two, and the diagnosis counts it as a start.
    first_window = set(recording.ranks[0].traced_steps)
    assert len(first_window) == 3 and first_window.isdisjoint(window.steps)
    for rank in diagnosis.ranks:
        assert first_window - {min(first_window)} <= {step.step for step in rank.steps} <= first_window
    stall = diagnosis.stall_trace
    assert isinstance(stall, StallTrace)
    evaluating, waiting = stall.ranks
    assert evaluating.step == window.due and not evaluating.waits
    assert evaluating.activities[0].name.startswith("aten::")
    assert waiting.excess_s > 0.5 * evaluating.excess_s
    (finding,) = (each for each in diagnosis.findings if each.name == "evaluation-stall")
    assert f"the trace of step {window.due} shows" in finding.title and "on rank 0" in finding.title
    assert diagnosis.job.traced_stall_share == pytest.approx(finding.share_of_step)
