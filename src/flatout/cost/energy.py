"""Compute kWh at the meter from GPU time and power.

    kWh = GPU-seconds x power of a GPU x (host over its GPUs) x PUE / 3.6e6

Power is measured or, if it was not, an assumed share of the vendor's limit.
"""

from __future__ import annotations

from flatout.catalog.prices import Prices
from flatout.cost.estimates import exact, of_range, product, unknown
from flatout.records.cost import Estimate
from flatout.records.machine import GpuFacts

J_PER_KWH = 3.6e6


def busy_power(gpu: GpuFacts | None, prices: Prices, *, measured_w: float | None = None) -> Estimate:
    """Return the power of a working GPU, in watts."""
    if measured_w is not None:
        return exact(measured_w)
    return _of_limit(gpu, of_range(prices.busy_power_share))


def idle_power(gpu: GpuFacts | None, prices: Prices) -> Estimate:
    """Return the power of a GPU that is held idle, in watts."""
    return _of_limit(gpu, of_range(prices.idle_power_share))


def energy(gpu_seconds: float, power: Estimate, prices: Prices) -> Estimate:
    """Return the energy at the meter, in kWh, of GPU time at this power."""
    if not gpu_seconds:
        return exact(0.0)
    return product(
        exact(gpu_seconds / J_PER_KWH),
        power,
        of_range(prices.host),
        of_range(prices.pue),
    )


def measured_energy(joules: float, prices: Prices) -> Estimate:
    """Return the energy at the meter, in kWh, for energy measured by the nodes' counters, which include the hosts."""
    return product(exact(joules / J_PER_KWH), of_range(prices.pue))


def _of_limit(gpu: GpuFacts | None, share: Estimate) -> Estimate:
    if gpu is None:
        return unknown("the GPU type is unknown (pass --gpu-type)")
    if gpu.tdp_w is None:
        return unknown(f"the catalogue does not list the power of {gpu.name}")
    return product(exact(gpu.tdp_w, "vendor"), share)
