"""Convert GPU time and kWh to USD and kg of CO2 equivalent. An unknown price makes the sum unknown, not 0."""

from __future__ import annotations

from flatout.catalog.carbon import GridCarbon
from flatout.catalog.prices import Range
from flatout.cost.estimates import exact, of_range, product, unknown
from flatout.records.cost import Estimate

S_PER_H = 3600.0


def rent(gpu_seconds: float, usd_per_gpu_hour: Range | None, *, gpu: str = "these GPUs") -> Estimate:
    """Return the price of GPU time in USD, electricity included."""
    if not gpu_seconds:
        return exact(0.0)
    if usd_per_gpu_hour is None:
        return unknown(f"the price of {gpu} is unknown (pass --gpu-price or --prices)")
    return of_range(usd_per_gpu_hour, gpu_seconds / S_PER_H)


def electricity(kwh: Estimate, usd_per_kwh: Range) -> Estimate:
    """Return the price of energy at the meter in USD."""
    return product(kwh, of_range(usd_per_kwh))


def carbon(kwh: Estimate, grid: GridCarbon | None) -> Estimate:
    """Return the kg of CO2 equivalent. The grid's value is a yearly average, so for one hour it is an assumption."""
    if grid is None:
        return unknown("the grid is unknown (pass --region)")
    return product(kwh, exact(grid.g_per_kwh / 1000, "assumed"))
