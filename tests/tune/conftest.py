from __future__ import annotations

import math

import msgspec
import pytest

from flatout.change import nccl
from flatout.records.prediction import NoPrediction

# Jobs that are simulated have no trace to replay.
_WITHOUT_TRACE = (
    "test_loop.py",
    "test_goes_on.py",
    "test_epoch_check.py",
    "test_block_screening.py",
    "test_profile_job.py",
    "test_trial_findings.py",
    "test_measured_collectives.py",
    "test_simulated_jobs.py",
    "test_call_limit.py",
    "test_noise_check.py",
    "test_nothing_helps.py",
)


class NoGpus:
    problem = "none"

    def facts(self) -> list[object]:
        return []


def _is_real(request: pytest.FixtureRequest) -> bool:
    return request.path.name == "test_real.py" or "real" in request.node.name


@pytest.fixture(autouse=True)
def _nothing_is_predicted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name not in _WITHOUT_TRACE or _is_real(request):
        return
    monkeypatch.setattr("flatout.tune.choose.predict_all", lambda *_, **__: {})
    nothing = NoPrediction(change="", family="", reason="it is simulated")
    monkeypatch.setattr("flatout.tune.choose.situation_of", lambda *_, **__: nothing)


@pytest.fixture(autouse=True)
def _has_no_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is simulated runs on no GPU, whatever this machine has, so NCCL is not measured for it."""
    if not _is_real(request):
        monkeypatch.setattr("flatout.nccl_tuner.in_tuning.Gpus", NoGpus)


@pytest.fixture
def channels_over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer more channels over sockets, as earlier versions did: two knobs for one cause that exclude each other."""
    needs = tuple(need for need in nccl.CHANNELS.needs if need.fact != "transport")
    monkeypatch.setattr(nccl, "CHANNELS", msgspec.structs.replace(nccl.CHANNELS, needs=needs))


@pytest.fixture
def nothing_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each candidate of a round its trial before the best one is confirmed, however much that one gains."""
    monkeypatch.setattr("flatout.tune.screening.OUTSTANDING", math.inf)
