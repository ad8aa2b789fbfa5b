"""FGD: placement by the gradient of fragmentation, for jobs that request shares of a GPU; jobs start in order.

Rule: in order of submission, but others can pass; a job is placed where the number of GPUs that the jobs seen so far
could not use grows least. Source: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent, ATC'23 (GPUs only; see `flatout.schedule.fragments`). When wrong: if all jobs request
whole nodes, it gains nothing over best fit.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.cluster import Cluster
from flatout.schedule.fragments import FragmentPool
from flatout.schedule.levels import MultilevelPolicy
from flatout.schedule.pool import Pool


class FragmentationGradient(MultilevelPolicy):
    name: ClassVar[str] = "fgd"
    summary: ClassVar[str] = "in order of submission, with overtaking; placed where fragmentation grows least"
    preempts: ClassVar[bool] = False

    def pool(self, cluster: Cluster) -> Pool:
        return FragmentPool(cluster.nodes)

    def submitted(self, job: int) -> None:
        pool, shape = self.sim.pool, self.sim.shapes[self.sim.shape[job]]
        assert isinstance(pool, FragmentPool)
        pool.tasks.see(shape.gpus, shape.milli)
        super().submitted(job)

    def level(self, job: int) -> int:
        return 0
