"""Power limits of a job's GPUs fall to the knee of its curve, through a stand-in for NVML, and come back at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pynvml
import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.probe.power_limits import PowerLimitError, PowerLimits
from flatout.records.adaptation import PowerAdaptation
from flatout.report.adaptation_text import power_sentence
from flatout.run.adapt_power import LEAST_GAIN, MEASURED_STEPS, SETTLING_STEPS, PowerAdapter

FIRST_W, LEAST_W = 700.0, 200.0


class LimitedGpus:
    """In place of `pynvml`: GPUs with a power limit, whose energy a test adds up."""

    NVMLError = pynvml.NVMLError

    def __init__(self, num_gpus: int = 2, *, may_set: bool = True, has_energy: bool = True) -> None:
        self.limits_mw = [round(FIRST_W * 1000)] * num_gpus
        self.energy_mj = [0.0] * num_gpus
        self.sets: list[tuple[int, int]] = []
        self.may_set = may_set
        self.has_energy = has_energy

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return round(LEAST_W * 1000), round(FIRST_W * 1000)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:  # noqa: N802
        return self.limits_mw[handle]

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return gpu_uuid(handle)

    def nvmlDeviceSetPowerManagementLimit(self, handle: int, limit_mw: int) -> None:  # noqa: N802
        if not self.may_set:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        self.sets.append((handle, limit_mw))
        self.limits_mw[handle] = limit_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> float:  # noqa: N802
        if not self.has_energy:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self.energy_mj[handle]

    def limits(self) -> PowerLimits:
        return PowerLimits(self, list(range(len(self.limits_mw))))


def gpu_uuid(index: int) -> str:
    return f"GPU-{index + 1:08x}-0000-0000-0000-000000000000"


def step_s(limit_w: float) -> float:
    """A step takes 100 ms down to 500 W and then grows in proportion: the knee is at 500 W or a little below."""
    return 0.1 * max(1.0, 500 / limit_w)


class Job:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, gpus: LimitedGpus, mode: str = "on") -> None:
        self.gpus = gpus
        self.rank = Rank(folder / "attempt-0", 0, 1, Clock(), patch)
        self.rank.beat.is_on(UUID(gpu_uuid(1).removeprefix("GPU-")).bytes)
        self.reader = HeartbeatReader(folder / "attempt-0")
        self.told: list[PowerAdaptation] = []
        self.adapter = PowerAdapter(mode, gpus.limits(), report=self.told.append)  # type: ignore[arg-type]
        self.time_of: Any = step_s

    def run(self, num_steps: int) -> None:
        for number in range(num_steps):
            limit_w = self.gpus.limits_mw[1] / 1000
            duration_s = self.time_of(limit_w)
            self.gpus.energy_mj[1] += limit_w * duration_s * 1000  # it draws what it may
            self.rank.spends("compute", int(duration_s * 1e9))
            self.rank.steps()
            if number % 10 == 9:
                self.adapter.look(ranks_of(self.reader.read()))

    @property
    def outcomes(self) -> list[str]:
        return [each.outcome for each in self.told]


ROUND = SETTLING_STEPS + MEASURED_STEPS + 20


def test_the_limit_falls_to_the_knee_and_comes_back_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGpus()
    job = Job(tmp_path, monkeypatch, gpus)
    job.run(6 * ROUND)
    assert job.outcomes == ["tried", "tried", "tried", "tried", "kept"]
    assert [each.limit_w for each in job.told] == pytest.approx([630, 560, 490, 420, 490])
    kept = job.told[-1]
    assert (kept.before_s, kept.before_j) == pytest.approx((0.1, 70), rel=0.02)
    assert (kept.after_s, kept.after_j) == pytest.approx((0.1 * 500 / 490, 50), rel=0.02)
    assert gpus.limits_mw == [700_000, 490_000], "only the job's GPU"
    job.run(3 * ROUND)
    assert len(job.told) == 5, "nothing follows"
    job.adapter.close()
    assert gpus.limits_mw == [700_000, 700_000]
    sentence = "the power limit of 1 GPU stays at 490 W until the job ends: 102 ms and 50 J per step, 100 ms and 70 J"
    assert power_sentence(kept).startswith(sentence)


def test_a_dry_run_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGpus()
    job = Job(tmp_path, monkeypatch, gpus, "dry-run")
    job.run(3 * ROUND)
    assert (job.outcomes, gpus.sets) == (["would_try"], [])
    assert power_sentence(job.told[0]).startswith("dry run: the power limit of 1 GPU would fall from 700 W to 630 W")


@pytest.mark.parametrize(("gain", "outcome"), [(LEAST_GAIN + 0.005, "kept"), (LEAST_GAIN - 0.005, "undone")])
def test_a_limit_that_hardly_pays_is_undone(
    gain: float, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = LimitedGpus()
    job = Job(tmp_path, monkeypatch, gpus)
    # At 630 W the product of time and energy is less by `gain`, and at 560 W it is more than before.
    times = {700: 0.1, 630: 0.1 * ((1 - gain) * 700 / 630) ** 0.5, 560: 0.2}
    job.time_of = lambda limit_w: times[round(limit_w)]
    job.run(4 * ROUND)
    assert job.outcomes == ["tried", "tried", outcome]
    assert gpus.limits_mw[1] == (630_000 if outcome == "kept" else 700_000)


def test_a_limit_that_may_not_be_set_ends_it_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, LimitedGpus(may_set=False))
    job.run(3 * ROUND)
    assert job.outcomes == ["stopped"]
    assert "cannot be set to 630 W" in power_sentence(job.told[0])


def test_without_an_energy_counter_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = LimitedGpus(has_energy=False)
    job = Job(tmp_path, monkeypatch, gpus)
    job.run(3 * ROUND)
    assert (job.told, gpus.sets) == ([], [])


def test_limits_come_back_after_an_error() -> None:
    gpus = LimitedGpus()

    def fails() -> None:
        with gpus.limits() as limits:
            limits.set(0, 300)
            limits.set(0, 250)
            assert gpus.limits_mw[0] == 250_000
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert gpus.limits_mw == [700_000, 700_000]
    with pytest.raises(PowerLimitError, match="the power limit of GPU 1 cannot be set to 300 W"):
        LimitedGpus(may_set=False).limits().set(1, 300)
