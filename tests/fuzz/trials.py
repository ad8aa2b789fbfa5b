"""Journals of tunings and comparisons as the fuzzer damages them, and what Flatout computes from their trials.

In: invented trials with every kind of evidence that a journal has today. Out: `Sample` files, and the functions that
read them as a resumed tuning and a resumed comparison do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random

import msgspec
from tests.fuzz.samples import Sample

from flatout.input_files import decode_json, read_lines
from flatout.records.start_costs import StartCosts
from flatout.records.trial import BASELINE, Covariates, GradientNorms, StartState, StepSpell, TrialResult
from flatout.trial.journal import Heading, Journal, JournaledTrial, Profile

_NUM_STEPS = 24
_MOST_TRIALS = 60  # a tuning runs fewer; the rest of a longer journal is never recalled
_ARMS = (BASELINE, "B")


def _trial(index: int, arm: str) -> TrialResult:
    """Return a trial whose loader ends each tenth step, on a machine with a little noise."""
    random = Random(index)
    steps_s = [0.01 * random.lognormvariate(0, 0.02) + (0.05 if step % 10 == 4 else 0) for step in range(_NUM_STEPS)]
    spells = [StepSpell(4 + 10 * epoch, kind, seconds) for epoch in (0, 1) for kind, seconds in (("epoch_end", 0.0),)]
    spells.append(StepSpell(14, "loader_start", 0.05))
    return TrialResult(
        index=index,
        arm=arm,
        outcome="completed",
        step_s=tuple(steps_s),
        epoch_ends=(4, 14),
        first_step=6,
        unmeasured_steps=(31,),
        spells=tuple(spells),
        steps_per_epoch=10,
        samples_per_step=8.0,
        tokens_per_step=4096.0,
        peak_memory_bytes=1 << 30,
        energy_j_per_step=12.5,
        losses=tuple(2.0 / (step + 1) for step in range(_NUM_STEPS)),
        gradients=(GradientNorms(num_parameters=3, norms=(1.0, 0.5), unclipped=(2.0, 0.5), absent=(2,)),),
        start=(StartState(num_steps=0, has_state=False, weights="0123abcd"),),
        loader_workers=2,
        start_s=4.0,
        start_costs=StartCosts(
            launch_s=1.0,
            import_s=1.5,
            setup_s=0.5,
            group_s=0.2,
            evaluation_s=0.0,
            first_batch_s=0.3,
            first_step_s=0.3,
            warmup_s=0.2,
            end_s=0.4,
        ),
        covariates=Covariates(cores_busy_by_others=0.2, cores_allowed=2.0, throttle_share={"thermal": 0.1}),
        took_s=6.0,
        stopped_by="enough",
        session=index % 2,
    )


@cache
def journal(arms: Sequence[str]) -> bytes:
    """Return the journal of a tuning or of one arm, with a profile and four trials."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        options = {"num_steps": "12", "blocks": "True", "knobs": "()", "warmup": "None"}
        kept = Journal(path, Heading(tool_version="0.1.0", command=("python", "train.py"), options=options))
        kept.add_profile(Profile(key="profile", folder="profile-000", took_s=3.0))
        for index, arm in enumerate(arms):
            kept.add(f"{arm} 12", _trial(index, arm), "round 1")
        return path.read_bytes()


def journals() -> list[Sample]:
    """Return the journal of a tuning with trials of both arms."""
    return [Sample(files={"journal.jsonl": journal(_ARMS * 3)}, given="journal.jsonl")]


def comparisons() -> list[Sample]:
    """Return the folder of a comparison: a journal for each arm."""
    files = {f"{name}/journal.jsonl": journal((arm,) * 4) for name, arm in (("a", BASELINE), ("b", "B"))}
    return [Sample(files=files)]


def trials_of(path: Path) -> list[TrialResult]:
    """Return the trials of a journal as a resumed tuning recalls them. The journal's own heading is asked for."""
    heading = Heading(tool_version="0.1.0", command=("python", "train.py"), options={})
    with suppress(OSError, msgspec.DecodeError):
        heading = decode_json(next(read_lines(path), b""), Heading)
    kept = Journal(path, heading, may_replace=False)
    trials: list[TrialResult] = []
    if not path.is_file():
        return trials
    for line in read_lines(path):
        try:
            key = decode_json(line, JournaledTrial, strict=False).key
        except msgspec.DecodeError:
            continue
        recalled = kept.recall(key, "round 1")
        if recalled is not None:
            trials.append(recalled)
    return [msgspec.structs.replace(trial, index=index) for index, trial in enumerate(trials[:_MOST_TRIALS])]


def judge_tuning(path: Path) -> None:
    """Do what a resumed tuning does with the trials of its journal: gates, costs, noise, verdict, forecast."""
    from flatout.records.change import ChangeSet
    from flatout.trial.gates import check_losses, check_memory
    from flatout.trial.gradient_gate import check_gradients
    from flatout.verdict.arms import judge_arms
    from flatout.verdict.prospect import what_next

    trials = [trial for trial in trials_of(path) if trial.is_complete]
    baselines = [trial for trial in trials if trial.arm == BASELINE]
    for objective in ("step_s", "s_per_sample", "peak_memory_bytes", "energy_j_per_step"):
        judge_arms(trials, "B", objective=objective, is_last=True)
    what_next(trials, "B", objective="step_s", min_effect=0.01)
    if not baselines:
        return
    for trial in trials:
        check_losses(trial, baselines, ChangeSet())
        check_gradients(trial, baselines, ChangeSet())
        check_memory(trial, baselines)


def judge_comparison(path: Path) -> None:
    """Do what a resumed comparison does with the trials of both journals."""
    from flatout.compare.judge import is_gate_hopeless, judged, run_sd
    from flatout.compare.result import training_check

    both = [trials_of(path / name / "journal.jsonl") for name in ("a", "b")]
    in_turn = [trial for pair in zip(*both, strict=False) for trial in pair]
    trials = [msgspec.structs.replace(trial, index=index, arm=_ARMS[index % 2]) for index, trial in enumerate(in_turn)]
    complete = [trial for trial in trials if trial.is_complete]
    run_sd(complete, "step_s")
    judged(trials, objective="step_s", gate=0.03, is_last=True)
    is_gate_hopeless(trials, objective="step_s", gate=0.03)
    training_check(*([trial for trial in complete if trial.arm == arm] for arm in _ARMS))
