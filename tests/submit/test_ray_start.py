"""`connect_ray` starts Ray again where its raylet ended while it waited for its agents."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.errors import FlatoutError, UsageError
from flatout.submit.ray_start import ATTEMPTS, connect_ray

TIMED_OUT = Exception(
    "The current node timed out during startup. This could happen because some of the raylet failed to startup."
)


class Ray:
    """Ray's `init` and `shutdown`, with one outcome for each call."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[str] = []

    def init(self, *, address: str | None, **options: Any) -> None:
        self.calls.append(f"init {address}")
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_start_that_timed_out_is_repeated() -> None:
    ray = Ray(TIMED_OUT, TIMED_OUT, None)
    connect_ray(ray, "local")
    assert ray.calls == ["init local", "shutdown", "init local", "shutdown", "init local"]


def test_the_last_failure_is_said_in_one_line_with_the_ways_out() -> None:
    ray = Ray(*[TIMED_OUT] * ATTEMPTS)
    with pytest.raises(FlatoutError, match="did not start on this machine in 3 attempts: The current node") as error:
        connect_ray(ray, None)
    assert "RAY_ADDRESS" in error.value.hint
    assert ray.calls.count("init None") == 3


def test_a_cluster_that_is_not_there_is_not_asked_again() -> None:
    ray = Ray(ConnectionError("ray.init(address=10.0.0.1:6379) failed\nmore"))
    with pytest.raises(UsageError, match=r"no Ray cluster can be reached at 10\.0\.0\.1:6379: ray\.init\(address"):
        connect_ray(ray, "10.0.0.1:6379")
    assert ray.calls == ["init 10.0.0.1:6379"]
