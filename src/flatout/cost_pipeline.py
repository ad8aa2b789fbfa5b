"""Report the cost of GPU time and ways to lower it, from accounting files, power curves or spot traces.

Composes the readers, the catalogue of prices and carbon, and the arithmetic of `cost`, for `flatout cost` and, for
spot machines, `flatout submit`. Nothing is printed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.catalog.carbon import grid_carbon
from flatout.catalog.prices import TERMS, Prices, Terms, all_prices, exactly, gpu_named, read_prices
from flatout.cost.buying import buy_or_rent
from flatout.cost.chargeback import Tariff, chargeback
from flatout.cost.power_cap import cap_advice
from flatout.cost.recorded import recorded_attempt
from flatout.cost.spot import SpotJob, availability, spot_advice, youngs_interval_s
from flatout.errors import InputError, UsageError
from flatout.input_files import MAX_BYTES
from flatout.profile.read_recording import is_recording, read_recording
from flatout.read.ownership import read_ownership
from flatout.read.power_curve import read_power_curve
from flatout.read.sacct import merged, parse_sacct, read_sacct
from flatout.read.spot_trace import read_spot_trace
from flatout.read.usage import read_usage
from flatout.records.attempts import Attempts, Usage
from flatout.records.buying import BuyOrRent
from flatout.records.chargeback import Chargeback
from flatout.records.power import CapAdvice
from flatout.records.spot import SpotAdvice

STANDARD_INPUT = Path("-")
S_PER_H = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOptions:
    """Prices given by the user. None: the catalogue's price."""

    gpu_type: str | None = None  # if the input names none
    usd_per_gpu_hour: float | None = None
    terms: str = "on-demand"
    file: Path | None = None
    usd_per_kwh: float | None = None

    def prices(self) -> Prices:
        prices = all_prices() if self.file is None else read_prices(self.file)
        if self.usd_per_kwh is None:
            return prices
        return msgspec.structs.replace(prices, electricity=exactly(self.usd_per_kwh, "--electricity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRequest:
    """A job that could run on spot machines. Prices and the checkpoint interval are optional."""

    trace: Path
    work_s: float
    deadline_s: float
    num_instances: int = 1
    gpus_per_instance: int = 1
    spot_usd_per_gpu_hour: float | None = None
    checkpoint_interval_s: float | None = None  # None: Young's optimum
    checkpoint_cost_s: float = 30.0
    restart_s: float = 300.0


def charge(
    paths: Sequence[Path],
    options: PriceOptions,
    *,
    region: str | None = None,
    usage: Path | None = None,
    project: str = "wckey",
    team: str | None = None,
    budgets: Sequence[str] = (),
    budget_period_s: float | None = None,
    checkpoint_interval_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Chargeback:
    """Charge the GPU time in `paths` to teams and projects.

    `paths` are outputs of sacct, recordings, or `-` for standard input. Raises InputError for a file that cannot be
    read, UsageError for terms, a GPU or a budget that make no sense.
    """
    attempts, usages = _read_attempts(paths, project=project, team=team, progress=progress)
    if usage is not None:
        usages |= read_usage(usage)
    prices = options.prices()
    own_price = options.usd_per_gpu_hour
    tariff = Tariff(
        prices=prices,
        terms=_terms(options.terms),
        usd_per_gpu_hour=exactly(own_price, "--gpu-price") if own_price is not None else None,
        gpu=_known_gpu(options.gpu_type, prices),
        grid=grid_carbon(region) if region is not None else None,
    )
    return chargeback(
        attempts,
        usages,
        tariff,
        budgets=_parse_budgets(budgets),
        budget_period_s=budget_period_s,
        checkpoint_interval_s=checkpoint_interval_s,
    )


def advise_power_cap(path: Path, options: PriceOptions) -> CapAdvice:
    """Find the knee of measured power-cap curves and whether capping pays at these prices."""
    prices = options.prices()
    terms = _terms(options.terms)
    usd_per_gpu_hour = options.usd_per_gpu_hour
    gpu = _known_gpu(options.gpu_type, prices)
    if usd_per_gpu_hour is None and gpu is not None:
        usd_per_gpu_hour = _typical_price(prices, gpu, terms)
    return cap_advice(read_power_curve(path), path=str(path), prices=prices, usd_per_gpu_hour=usd_per_gpu_hour)


def advise_spot(request: SpotRequest, options: PriceOptions) -> SpotAdvice:
    """Replay the job in the trace on spot machines, on demand and on both. Raises UsageError without a price."""
    prices = options.prices()
    gpu = _known_gpu(options.gpu_type, prices)
    on_demand_usd = options.usd_per_gpu_hour
    spot_usd = request.spot_usd_per_gpu_hour
    if gpu is not None:
        on_demand_usd = on_demand_usd if on_demand_usd is not None else _typical_price(prices, gpu, "on-demand")
        spot_usd = spot_usd if spot_usd is not None else _typical_price(prices, gpu, "spot")
    if on_demand_usd is None or spot_usd is None:
        missing = "on spot" if spot_usd is None else "on demand"
        raise UsageError(
            f"the price of a GPU-hour {missing} is unknown",
            hint="pass a --gpu-type with both prices, e.g. h100, or `flatout cost spot` --spot-price and --gpu-price",
        )
    trace = read_spot_trace(request.trace)
    mean_time_to_loss_s = availability(trace, request.num_instances).mean_time_to_loss_s
    interval_s = request.checkpoint_interval_s
    if interval_s is None and mean_time_to_loss_s:
        interval_s = youngs_interval_s(request.checkpoint_cost_s, mean_time_to_loss_s)
    job = SpotJob(
        work_s=request.work_s,
        deadline_s=request.deadline_s,
        checkpoint_interval_s=interval_s or request.work_s,
        checkpoint_cost_s=request.checkpoint_cost_s,
        restart_s=request.restart_s,
        num_instances=request.num_instances,
    )
    return spot_advice(
        trace,
        job,
        spot_usd_per_h=spot_usd * request.gpus_per_instance,
        on_demand_usd_per_h=on_demand_usd * request.gpus_per_instance,
        is_interval_youngs=request.checkpoint_interval_s is None and mean_time_to_loss_s is not None,
    )


def advise_buying(path: Path, options: PriceOptions) -> BuyOrRent:
    """Compare buying the GPUs of the file with renting them. Raises InputError for a file that makes no sense."""
    prices = options.prices()
    ownership = read_ownership(path)
    gpu = _known_gpu(options.gpu_type, prices) or _known_gpu(ownership.gpu, prices, named=f"`gpu` of `{path}`")
    own_rent = options.usd_per_gpu_hour
    return buy_or_rent(
        msgspec.structs.replace(ownership, gpu=gpu),
        path=str(path),
        prices=prices,
        terms=_terms(options.terms),
        rent_per_gpu_hour=exactly(own_rent, "--gpu-price") if own_rent is not None else None,
    )


def _read_attempts(
    paths: Sequence[Path], *, project: str, team: str | None, progress: Callable[[int, int], None] | None
) -> tuple[Attempts, dict[str, Usage]]:
    """Read the attempts in all files, and the measured usage of recorded jobs.

    A recording is an attempt unless the accounting has its job; its measured usage counts in both cases.
    """
    files: list[Attempts] = []
    recorded: list[Attempts] = []
    usages: dict[str, Usage] = {}
    for path in paths:
        if is_recording(path):
            attempt, usage = recorded_attempt(read_recording(path), team=team)
            recorded.append(Attempts(path=str(path), attempts=(attempt,), num_rows=1, clocks=("utc",)))
            usages[usage.job] = usage
        elif path == STANDARD_INPUT:
            files.append(parse_sacct(_standard_input(), name="standard input", project=project))
        else:
            files.append(read_sacct(path, project=project, progress=progress))
    accounted_jobs = {attempt.job for file in files for attempt in file.attempts}
    files += [file for file in recorded if file.attempts[0].job not in accounted_jobs]
    attempts = files[0] if len(files) == 1 else merged(files)
    return attempts, usages


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(
            f"standard input has more than {MAX_BYTES >> 20} MiB, or no end",
            hint="write the output of sacct to a file, and pass the file",
        )
    return data


def _terms(text: str) -> Terms:
    for terms in TERMS:
        if terms == text:
            return terms
    raise UsageError(f"`--terms` must be one of {', '.join(TERMS)}, but is `{text}`")


def _known_gpu(name: str | None, prices: Prices, *, named: str = "`--gpu-type`") -> str | None:
    """Return `name`. Raises UsageError for an unknown GPU, since a typing mistake would only make costs unknown."""
    if name is None or gpu_named(name) is not None or any(price.gpu == name for price in prices.gpus):
        return name
    raise UsageError(
        f"{named} must be a GPU in the catalogue or in your prices, but is `{name}`",
        hint="e.g. h100, a100-80gb or `H100 PCIe 80GB`; docs/reference/gpus.md lists them",
    )


def _typical_price(prices: Prices, gpu: str, terms: Terms) -> float | None:
    price = prices.gpu(gpu, terms)
    return price.typical if price is not None else None


def _parse_budgets(texts: Sequence[str]) -> dict[str, float]:
    budgets: dict[str, float] = {}
    for text in texts:
        team, _, amount = text.rpartition("=")
        try:
            usd = float(amount)
        except ValueError:
            usd = math.nan
        if not team or not 0 <= usd < math.inf or team in budgets:
            raise UsageError(f"`--budget` must be TEAM=USD, once per team, but got `{text}`")
        budgets[team] = usd
    return budgets
