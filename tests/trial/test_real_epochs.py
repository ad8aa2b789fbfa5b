"""Windows of a real job of two gloo ranks with short epochs: their numbers, their work, and their cost."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.profile.runs import recorded

from flatout.records.recording import RankRecording
from flatout.records.trial import BASELINE, TrialResult
from flatout.trial.result import mean_steps
from flatout.trial.step_kinds import step_numbers, step_spells
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "epochs_job.py"
STEPS = 15  # of an epoch
EVALUATION_S, SAVE_S = 0.2, 0.1


def windows(ranks: tuple[RankRecording, ...], firsts: range, num_steps: int) -> list[TrialResult]:
    """Trials that measured the same job, each from another step on."""
    trials = []
    for index, first in enumerate(firsts):
        last = first + num_steps
        cut = [msgspec.structs.replace(rank, settled_step=first, steps=_until(rank, last)) for rank in ranks]
        numbers = step_numbers(cut)
        trials.append(
            TrialResult(
                index=index,
                arm=BASELINE,
                outcome="completed",
                step_s=mean_steps(cut),
                first_step=numbers.first,
                unmeasured_steps=numbers.unmeasured,
                spells=step_spells(cut),
            )
        )
    return trials


def _until(rank: RankRecording, last: int) -> object:
    fields = {
        name: value[rank.steps.number < last]
        for name in rank.steps.__struct_fields__
        if isinstance(value := getattr(rank.steps, name), np.ndarray)
    }
    kinds = tuple(kind for kind, number in zip(rank.steps.kind, rank.steps.number, strict=True) if number < last)
    return msgspec.structs.replace(rank.steps, **fields, kind=kinds)


def test_every_window_of_a_real_job_of_short_epochs_has_the_same_cost(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
    recording, _ = recorded(tmp_path / "r", [*launch, "--epochs", "6"], "--light", "--warmup", "11")
    trials = windows(recording.ranks, range(17, 60, 4), 20)
    num_ends = [
        sum(number % STEPS == 0 for number in range(t.first_step or 0, (t.first_step or 0) + 20)) for t in trials
    ]
    assert {1, 2} == set(num_ends)
    kinds = {spell.kind for spell in trials[-1].spells or () if spell.step % STEPS == 0}
    assert kinds >= {"epoch_end", "evaluation", "checkpoint"}

    costs = trial_costs(trials, "step_s")
    step = arm_step(list(costs.values()))
    assert step is not None
    main = step.work[0]
    assert set(main.kinds) >= {"epoch_end", "evaluation", "checkpoint"}
    assert main.period_steps == STEPS
    assert main.extra_s == pytest.approx(EVALUATION_S + SAVE_S, rel=0.15)
    whole_epochs = np.array(mean_steps(recording.ranks))[4 : 4 + 4 * STEPS]  # from step 15 on
    assert step.step_s == pytest.approx(float(whole_epochs.mean()), rel=0.05)
    spread = np.std([cost.log for cost in costs.values()])
    plain = np.std([np.log(np.mean(trial.step_s)) for trial in trials])
    assert spread < 0.5 * plain
