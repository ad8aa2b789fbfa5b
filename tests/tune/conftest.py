from __future__ import annotations

import pytest

from flatout.records.prediction import NoPrediction


@pytest.fixture(autouse=True)
def _nothing_is_predicted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is simulated has no trace to replay."""
    if (
        request.path.name
        in (
            "test_loop.py",
            "test_goes_on.py",
            "test_epoch_check.py",
            "test_block_screening.py",
            "test_profile_job.py",
            "test_trial_findings.py",
            "test_measured_collectives.py",
        )
        and "real" not in request.node.name
    ):
        monkeypatch.setattr("flatout.tune.choose.predict_all", lambda *_, **__: {})
        nothing = NoPrediction(change="", family="", reason="it is simulated")
        monkeypatch.setattr("flatout.tune.choose.situation_of", lambda *_, **__: nothing)
