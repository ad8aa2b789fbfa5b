"""The rates of a rank, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.loading.test_speed import a_loader, a_stage

from flatout.loading.rates import loading_rates


def rates(**changed: Any) -> dict[str, float | None]:
    """Two workers: a sample decodes 3 ms and reads 5 ms; a step computes 10 ms, on 8 samples, and waits 22 ms."""
    stages = (a_stage("decode", cpu_s=0.003), a_stage("read", waiting_s=0.005))
    values: dict[str, Any] = {"num_workers": 2, "sample_s": 0.008, "step_s": 0.032, "loader_wait_s": 0.022}
    return {rate.name.value: rate.samples_per_s for rate in loading_rates(a_loader(*stages, **values | changed))}


def test_each_alone() -> None:
    known = rates()
    assert known["training"] == pytest.approx(250)
    assert known["training, batches ready"] == pytest.approx(800)
    assert known["loader"] == pytest.approx(250)
    assert known["loader, files in memory"] == pytest.approx(2 / 0.003)


def test_the_cores_bound_the_loader_from_memory() -> None:
    assert rates(num_workers=8, cores_allowed=4, ranks_on_host=2)["loader, files in memory"] == pytest.approx(2 / 0.003)


@pytest.mark.parametrize(("device_bytes", "samples_per_s"), [(900.0, 250.0), (899.0, None), (None, None)])
def test_the_storage_is_known_if_nine_tenths_came_from_it(device_bytes: float | None, samples_per_s: float) -> None:
    assert rates(read_bytes=1000.0, device_bytes=device_bytes)["loader, files from storage"] == samples_per_s


def test_batches_from_memory_and_from_storage_are_measured_where_there_were_some() -> None:
    measured = rates(from_memory_s=0.004, from_storage_s=0.01, read_bytes=1000.0, device_bytes=1000.0)
    assert measured["loader, files in memory"] == pytest.approx(500)
    assert measured["loader, files from storage"] == pytest.approx(200)


def test_without_steps_the_rates_of_the_training_are_unknown() -> None:
    unknown = rates(step_s=None)
    assert (unknown["training"], unknown["training, batches ready"]) == (None, None)
