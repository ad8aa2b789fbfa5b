"""A tuning says which change it leaves out for its class, if that change answers the job's largest cost."""

from __future__ import annotations

import pytest
from tests.change.jobs import diagnosis, facts

from flatout.records.change import Safety
from flatout.tune.not_allowed import note_on_not_allowed


def note(allowed: Safety = "exact", cost_s: float = 0.1, **known: object) -> str | None:
    of_job = facts(loader_workers=2, loader_has_persistent_workers=False, **known)
    return note_on_not_allowed(diagnosis({"epoch-boundary": cost_s}, step_s=0.25), of_job, allowed)


def test_workers_that_would_keep_the_state_of_a_data_set_are_named() -> None:
    said = note(loader_draws=True)
    assert said is not None
    assert said.startswith("dataloader-persistent-workers is not tried, because its class is semantic")
    assert "against epoch-boundary" in said and "at most 1.67x" in said and "--allow semantic" in said


@pytest.mark.parametrize("allowed", ["semantic", "exact"])
def test_what_is_tried_is_not_named(allowed: Safety) -> None:
    assert note(allowed, loader_draws=allowed == "semantic") is None


@pytest.mark.parametrize(("cost_s", "is_named"), [(0.0228, True), (0.0226, False)])
def test_a_bound_of_a_tenth_is_worth_a_note(cost_s: float, is_named: bool) -> None:
    assert (note(cost_s=cost_s, loader_draws=True) is not None) is is_named


def test_changes_that_every_job_could_try_are_not_named() -> None:
    computing = diagnosis({}, step_s=0.25, parts={"compute": 0.25})
    assert note_on_not_allowed(computing, facts(is_autocast=False), "exact") is None
