"""Read the cluster, and the data type of matrix multiplications, from a row of a table of measured runs."""

from __future__ import annotations

import msgspec

from flatout.catalog import all_gpu_facts
from flatout.catalog.run_spellings import GpuSpelling, number_in, run_spellings, value_of
from flatout.plan import clusters
from flatout.plan.run_row import RunRow
from flatout.records.plan import ClusterSpec

# Memory and rate of one HBM2e stack.
HBM2E_GB, HBM2E_BYTES_PER_S = 16, 408e9


def cluster_of(row: RunRow) -> tuple[ClusterSpec, dict[str, float]] | None:
    """Return the cluster, and the measured share of each peak; None if the GPU is unknown."""
    spellings = run_spellings()
    gpu = spellings.gpu_named(row.text("gpu"))
    if gpu is None:
        return None
    system = clusters.system(gpu.value)
    interconnect = row.text("interconnect")
    gpus_per_node = row.whole("gpus_per_node", system.gpus_per_node)
    cluster, shares = clusters.of_system(
        gpu.value,
        system,
        row.whole("num_gpus", 1),
        gpus_per_node=gpus_per_node,
        nvlink_domain=number_in(spellings.patterns.nvlink_domain, interconnect),
        nic_bytes_per_s=spellings.node_bytes_per_s(interconnect, gpus_per_node),
    )
    return _variant(cluster, gpu, row.lower("gpu")), shares


def _variant(cluster: ClusterSpec, gpu: GpuSpelling, gpu_text: str) -> ClusterSpec:
    """Return the cluster with the details in the GPU's name that the catalogue lacks: links, HBM2e memory, power limit.

    If a limit is below the data sheet's, clocks are assumed to follow the square root of the power.
    """
    patterns = run_spellings().patterns
    if gpu.link_gb_per_s is not None:
        cluster = msgspec.structs.replace(cluster, link_bytes_per_s=gpu.link_gb_per_s * 1e9)
    memory_gb = number_in(patterns.hbm2e_gb, gpu_text)
    if memory_gb is not None:
        rate = memory_gb / HBM2E_GB * HBM2E_BYTES_PER_S
        cluster = msgspec.structs.replace(cluster, memory_bytes=memory_gb << 30, memory_bytes_per_s=rate)
    limit_w = number_in(patterns.power_limit_w, gpu_text)
    tdp_w = next(facts.tdp_w for facts in all_gpu_facts() if facts.name == cluster.gpu)
    if limit_w is None or tdp_w is None or limit_w >= tdp_w:
        return cluster
    clock_share = (limit_w / tdp_w) ** 0.5
    peaks = {dtype: peak * clock_share for dtype, peak in cluster.peak_flops_per_s.items()}
    return msgspec.structs.replace(cluster, peak_flops_per_s=peaks)


def precision_of(row: RunRow) -> str:
    """Return the operand type of the linear layers."""
    return value_of(run_spellings().precision, row.text("precision"))
