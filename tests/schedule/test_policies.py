"""Each policy by name passes the conformance class; and what each is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.policies.names import POLICIES, make
from flatout.schedule.policy import Policy
from flatout.schedule.result import SimulationResult
from flatout.testing.policies import PolicyConformance


@pytest.fixture(params=sorted(POLICIES), autouse=True)
def name(request: pytest.FixtureRequest) -> str:
    TestEachPolicy.name = request.param
    return str(request.param)


class TestEachPolicy(PolicyConformance):
    name: ClassVar[str] = ""

    # Runs repeat exactly, which has its own test: each policy's are simulated once for all tests that read them.
    simulated: ClassVar[dict[str, list[SimulationResult]]] = {}

    def make(self, jobs: Sequence[ClusterJob], cluster: Cluster) -> Policy:
        return make(self.name, jobs, cluster)

    def runs(self) -> list[SimulationResult]:
        if self.name not in self.simulated:
            self.simulated[self.name] = super().runs()
        return self.simulated[self.name]
