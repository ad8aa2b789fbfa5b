"""What trials show of a job's work that its short profile did not hold: findings, their costs, and candidates."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.change.jobs import facts
from tests.tune.simulated import SimulatedRunner, tuned
from tests.tune.test_long_run import diagnosis, finding, stall

from flatout.change.dataloader import PERSISTENT
from flatout.records.change import ChangeSet
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, RankDiagnosis
from flatout.records.trial import StepSpell, TrialResult
from flatout.tune.loop import tune
from flatout.tune.options import TuneOptions
from flatout.tune.trial_findings import SEEN_BY, TRIALS_ONLY, is_seen_only_by_trials, with_trials

REGULAR_S = 0.104
FIRST = 12  # number of the first measured step


def trial(*works: tuple[str, int, float, float], index: int = 0, num_steps: int = 120, **values: Any) -> TrialResult:
    """A trial whose works are (kind, period, seconds beyond a regular step, seconds that a hook measured)."""
    step_s = np.full(num_steps, REGULAR_S)
    spells = []
    longest: dict[int, float] = {}
    for kind, period, extra_s, hook_s in works:
        for number in range(period, FIRST + num_steps, period):
            spells.append(StepSpell(number, kind, hook_s))  # type: ignore[arg-type]
            longest[number] = longest.get(number, 0.0) + extra_s
    for number, extra_s in longest.items():
        if number >= FIRST:
            step_s[number - FIRST] += extra_s
    return TrialResult(
        **{
            "index": index,
            "arm": "baseline",
            "outcome": "completed",
            "step_s": tuple(step_s.tolist()),
            "first_step": FIRST,
            "spells": tuple(sorted(spells, key=lambda spell: spell.step)),
        }
        | values
    )


def seen(profile: Diagnosis, *trials: TrialResult) -> dict[str, Finding]:
    found = with_trials(profile, trials, trials)
    assert len({one.name for one in found.findings}) == len(found.findings)
    return {one.name: one for one in found.findings}


def profile(*findings: Finding, busy_share: float = 0.0) -> Diagnosis:
    """A profile of 20 steps, shorter than any period here."""
    of_job = diagnosis(*findings, num_steps=20, regular_s=REGULAR_S)
    mean_s = of_job.job.mean_step_s
    assert isinstance(mean_s, float)
    parts = dict.fromkeys(PART_NAMES, 0.0) | {"compute": busy_share}
    rank = RankDiagnosis(rank=0, window_s=1.0, num_steps=5, parts_s=parts, lead_in_s=0.0, steps=(), step_s=REGULAR_S)
    shares = [msgspec.structs.replace(one, share_of_step=one.cost_s_per_step / mean_s) for one in of_job.findings]
    return msgspec.structs.replace(of_job, findings=tuple(shares), ranks=(rank,))


def epochs(extra_s: float = 0.954, period: int = 32, **values: Any) -> TrialResult:
    return trial(("loader_start", period, extra_s, extra_s), ("epoch_end", period, 0.0, 0.0), **values)


def test_a_boundary_that_no_profile_held_is_a_finding_of_the_trials() -> None:
    """A public report: the workers start anew at each epoch, which takes a quarter of the time."""
    mean_s = REGULAR_S + 0.954 / 32
    found = seen(profile(finding("host-bound", 0.97 * REGULAR_S)), epochs())
    boundary = found["epoch-boundary"]
    assert is_seen_only_by_trials(boundary) and boundary.code == "F17"
    assert boundary.cost_s_per_step == pytest.approx(0.954 / 32)
    assert boundary.share_of_step == pytest.approx(0.954 / 32 / mean_s)
    assert boundary.title == "each epoch's boundary, every 32 steps: 954 ms more"
    # The regular step is a smaller share of the job than of the profile.
    assert found["host-bound"].share_of_step == pytest.approx(0.97 * REGULAR_S / mean_s)
    assert not is_seen_only_by_trials(found["host-bound"])


def test_the_trials_say_what_work_costs_that_the_profile_held_too() -> None:
    """The profile held a boundary of 3 s, the trials several of 0.954 s: log, bounds and step have the latter."""
    held = profile(stall("epoch-boundary", [10], 20, 3.0), finding("host-bound", 0.05))
    before = {one.name: one for one in held.findings}
    found = seen(held, epochs())
    boundary, mean_s = found["epoch-boundary"], REGULAR_S + 0.954 / 32
    assert boundary.cost_s_per_step == pytest.approx(0.954 / 32)
    assert boundary.share_of_step == pytest.approx(0.954 / 32 / mean_s)
    assert not is_seen_only_by_trials(boundary) and boundary.evidence["num_steps"] == 20
    regular = before["host-bound"].cost_s_per_step / REGULAR_S
    assert found["host-bound"].share_of_step == pytest.approx(regular * REGULAR_S / mean_s)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("evaluation", "evaluation-stall"),
        ("checkpoint", "checkpoint-stall"),
        ("collection", "garbage-collection"),
        ("logging", "periodic-stall"),
        ("compilation", "periodic-stall"),
        ("loader_start", "epoch-boundary"),
    ],
)
def test_every_kind_of_work_that_hooks_know_has_its_finding(kind: str, name: str) -> None:
    found = seen(profile(), trial((kind, 40, 0.5, 0.5)))
    assert set(found) == {name}
    assert found[name].cost_s_per_step == pytest.approx(0.5 / 40)


def test_work_that_comes_together_divides_by_what_the_hooks_measured() -> None:
    """At each epoch's end: 1.2 s of evaluation, 0.3 s of a checkpoint, and 0.5 s that no hook measured."""
    works = [("epoch_end", 40, 0.5, 0.0), ("evaluation", 40, 1.2, 1.2), ("checkpoint", 40, 0.3, 0.3)]
    found = seen(profile(), trial(*works))
    costs_s = {name: one.cost_s_per_step * 40 for name, one in found.items()}
    assert costs_s == pytest.approx({"evaluation-stall": 1.2, "epoch-boundary": 0.5, "checkpoint-stall": 0.3})


def test_hooks_on_several_ranks_divide_no_more_than_the_step_takes() -> None:
    """Two ranks work at the same time, so their hooks measured more than the step took."""
    works = [("evaluation", 40, 0.6, 0.9), ("checkpoint", 40, 0.0, 0.3)]
    found = seen(profile(), trial(*works))
    costs_s = {name: one.cost_s_per_step * 40 for name, one in found.items()}
    assert costs_s == pytest.approx({"evaluation-stall": 0.45, "checkpoint-stall": 0.15})


@pytest.mark.parametrize(("share", "is_found"), [(0.021, True), (0.019, False)])
def test_work_of_less_than_a_fiftieth_of_the_step_is_no_finding(share: float, is_found: bool) -> None:
    extra_s = 40 * REGULAR_S * share / (1 - share)
    assert bool(seen(profile(), trial(("checkpoint", 40, extra_s, extra_s)))) == is_found


def test_long_steps_of_unknown_cause_leave_the_findings_of_the_profile_alone() -> None:
    """Every fourth batch comes late: the profile knows that it is data loading."""
    late = profile(finding("data-loading", 0.05))
    step_s = np.full(120, REGULAR_S)
    step_s[3::4] += 0.2
    found = seen(late, trial(step_s=tuple(step_s.tolist())))
    assert set(found) == {"data-loading"}
    assert found["data-loading"].share_of_step == pytest.approx(0.05 / REGULAR_S)


def test_a_stall_that_only_the_profile_held_stays() -> None:
    held = profile(stall("checkpoint-stall", [10], 20, 1.0), finding("host-bound", 0.05))
    before = {one.name: one.share_of_step for one in held.findings}
    found = {name: one.share_of_step for name, one in seen(held, trial()).items()}
    assert found == pytest.approx(before)


def test_a_loader_that_starts_again_in_the_middle_of_an_epoch_is_not_told_twice() -> None:
    held = profile(stall("periodic-stall", [10], 20, 1.0, cause="loader start"))
    found = seen(held, trial(("loader_start", 40, 0.5, 0.5)))
    assert set(found) == {"epoch-boundary"} and not is_seen_only_by_trials(found["epoch-boundary"])


def test_stalls_of_another_cause_stay_beside_those_that_the_trials_measured() -> None:
    held = profile(stall("periodic-stall", [10], 20, 1.0, cause="compilation"))
    found = with_trials(held, [trial(("logging", 40, 0.5, 0.5))], [trial(("logging", 40, 0.5, 0.5))])
    assert sorted(str(one.evidence["cause"]) for one in found.findings) == ["compilation", "logging"]


@pytest.mark.parametrize(
    ("of_profile", "waited_s", "busy_share", "cost_s"),
    [
        (None, 0.02, 0.0, 0.02),
        (None, 0.02, 0.9, 0.1 * REGULAR_S),  # while the device works, a wait costs nothing
        (0.01, 0.02, 0.0, 0.02),
        (0.03, 0.02, 0.0, 0.03),  # the profile may know more: the recorder's trials see only the host
        (None, 0.019 * REGULAR_S, 0.0, None),
        (None, 0.021 * REGULAR_S, 0.0, 0.021 * REGULAR_S),
    ],
)
def test_the_wait_for_batches_counts_where_it_is_longer_in_trials(
    of_profile: float | None, waited_s: float, busy_share: float, cost_s: float | None
) -> None:
    held = profile(*(() if of_profile is None else (finding("data-loading", of_profile),)), busy_share=busy_share)
    found = seen(held, trial(loader_wait_s=waited_s))
    if cost_s is None:
        assert not found
        return
    assert found["data-loading"].cost_s_per_step == pytest.approx(cost_s)
    assert is_seen_only_by_trials(found["data-loading"]) == (of_profile is None)


def test_without_complete_trials_the_profile_is_all_there_is() -> None:
    held = profile(finding("host-bound", 0.05))
    assert with_trials(held, [], []) is held


class Starting(SimulatedRunner):
    """A job whose loader starts its workers anew at each epoch of 32 steps, unless they are kept: 0.25 s of 8 s."""

    def __init__(self, *, is_stateless: bool) -> None:
        job = facts(
            loader_workers=2,
            cores_allowed=64.0,
            loader_draws=not is_stateless,
            loader_keeps_state=False,
        )
        super().__init__({}, job=job, costs={}, ends=self._boundaries, between_sd=0.003, step_sd=0.005)

    def _boundaries(self, index: int, changes: ChangeSet) -> dict[str, object]:
        random = np.random.default_rng(index)
        step_s = 0.25 * np.exp(random.normal(0, 0.003) + random.normal(0, 0.005, 70))
        if PERSISTENT.name in {change.knob.name for change in changes.changes}:
            return {"step_s": tuple(step_s.tolist()), "first_step": FIRST, "spells": ()}
        spells = []
        for number in (32, 64):
            step_s[number - FIRST] += 2.0
            spells += [StepSpell(number, "loader_start", 2.0), StepSpell(number, "epoch_end", 0.0)]
        return {"step_s": tuple(step_s.tolist()), "first_step": FIRST, "spells": tuple(spells)}


def test_a_boundary_that_only_trials_saw_brings_the_change_that_removes_it() -> None:
    """It said "no change helps" of such a job, because its profile of a few steps had no finding."""
    result = tuned(Starting(is_stateless=True), num_steps=70)
    assert [change.knob.name for change in result.tuning.changes.changes] == [PERSISTENT.name]
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.interval is not None
    assert verdict.interval[0] <= (0.25 + 2 / 32) / 0.25 <= verdict.interval[1]
    (bound,) = result.bounds
    assert bound.finding == "epoch-boundary" and bound.is_of_trials_only
    assert bound.speedup == pytest.approx((0.25 + 2 / 32) / 0.25, rel=0.01)


def test_a_change_that_only_trials_call_for_is_tried_within_the_safety_that_is_allowed() -> None:
    of_exact = tuned(Starting(is_stateless=False), num_steps=70)
    assert not of_exact.tried
    of_semantic = tuned(Starting(is_stateless=False), num_steps=70, allowed_safety="semantic")
    assert PERSISTENT.name in {name for one in of_semantic.tried for name in one.changes}


def test_the_evidence_says_who_saw_it() -> None:
    assert seen(profile(), epochs())["epoch-boundary"].evidence[SEEN_BY] == TRIALS_ONLY


def test_the_log_says_each_finding_with_one_cost_and_who_saw_it() -> None:
    said: list[str] = []
    runner = Starting(is_stateless=True)
    runner._costs = {"exposed-communication": 0.05, "data-loading": 0.02}
    tune(runner, TuneOptions(num_steps=70, max_trials=4), said.append)  # type: ignore[arg-type]
    findings = [line for line in said if line.startswith("finding: ")]
    assert len(findings) == 3
    assert findings[0].startswith("finding: epoch-boundary, ") and "% of it: each epoch's boundary" in findings[0]
    assert findings[0].endswith(" (seen only by the trials)")
    assert "% of it. Transfer between ranks" in findings[1] and "trials" not in findings[1]
    assert "% of it. The training waits for the next batch." in findings[2]
