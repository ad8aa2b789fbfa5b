"""Turn GPU time of one type into a `Bill`: the money, energy and carbon that a plan or a job costs."""

from __future__ import annotations

from flatout.catalog.carbon import GridCarbon
from flatout.catalog.prices import Prices, Range, Terms, gpu_named
from flatout.cost.energy import busy_power, energy
from flatout.cost.money import S_PER_H, carbon, electricity, rent
from flatout.records.cost import Bill


def bill(
    gpu: str,
    num_gpus: float,
    seconds: float,
    *,
    prices: Prices,
    terms: Terms = "on-demand",
    usd_per_gpu_hour: Range | None = None,
    power_w: float | None = None,
    grid: GridCarbon | None = None,
) -> Bill:
    """Return the bill of `num_gpus` GPUs working for `seconds`. `power_w` is the measured mean per GPU, or None."""
    gpu_seconds = num_gpus * seconds
    power = busy_power(gpu_named(gpu), prices, measured_w=power_w)
    kwh = energy(gpu_seconds, power, prices)
    price = usd_per_gpu_hour if usd_per_gpu_hour is not None else prices.gpu(gpu, terms)
    return Bill(
        gpu_hours=gpu_seconds / S_PER_H,
        rent_usd=rent(gpu_seconds, price, gpu=gpu),
        kwh=kwh,
        electricity_usd=electricity(kwh, prices.electricity),
        kg_co2=carbon(kwh, grid),
    )
