"""What the traces themselves say of the communication."""

from __future__ import annotations

from pathlib import Path

from flatout.attribute.job import attribute_job
from flatout.change.collectives import with_collectives
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.change import JobFacts

STRAGGLER = Path(__file__).parents[2] / "examples" / "traces" / "straggler.tar.xz"


def test_a_shipped_job_tells_its_collectives() -> None:
    done = diagnose_paths([STRAGGLER])
    found = with_collectives(JobFacts(launcher="torchrun"), done.job)
    assert (found.num_ranks, found.backend, found.device, found.launcher) == (4, "nccl", "cuda", "torchrun")
    assert found.gradient_element_bytes in (2, 4)
    assert found.collective_bytes is not None
    assert found.gradient_bytes is not None
    assert 2**20 < found.collective_bytes <= found.gradient_bytes


def test_without_traces_nothing_is_known() -> None:
    assert with_collectives(JobFacts(), attribute_job([])) == JobFacts()
