"""What an hour of the job's GPUs costs. In: the user's price, else the name of the GPU. Out: USD, as a range."""

from __future__ import annotations

from flatout.catalog.prices import all_prices

PriceRange = tuple[float, float]


def usd_per_gpu_hour(given: float | None, gpu: str | None) -> PriceRange | None:
    """Return the lowest and the highest price on demand; None if the catalogue has no price for this GPU."""
    if given is not None:
        return given, given
    price = all_prices().gpu(gpu) if gpu is not None else None
    return (price.low, price.high) if price is not None else None


def with_money(cost_gpu_h: float, price: PriceRange | None) -> PriceRange | None:
    return None if price is None else (cost_gpu_h * price[0], cost_gpu_h * price[1])
