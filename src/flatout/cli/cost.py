"""`flatout cost`: who used, held and lost which GPU time; `power-cap` and `spot`: what would cost less."""

from __future__ import annotations

import math
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.again import again, has_option
from flatout.cli.amounts import LARGEST
from flatout.cli.diagnose import given_path

if TYPE_CHECKING:
    from flatout.catalog.prices import Prices, Range, Terms
    from flatout.cost.chargeback import Tariff
    from flatout.records.attempts import Attempts, Usage
    from flatout.records.chargeback import Chargeback
    from flatout.records.spot import SpotAdvice

_ACTIONS = ("power-cap", "spot")
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def cost(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[power-cap|spot] PATH...",
            help="Output of `sacct -aPD`, or recordings of `flatout profile`; `-` is standard input. "
            "After power-cap: a CSV of measured caps. After spot: a trace of spot instances.",
            show_default=False,
        ),
    ],
    gpu_type: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of GPUs whose type is not told, as h100.")
    ] = None,
    gpu_price: Annotated[
        float | None, typer.Option(metavar="USD", help="An hour of one GPU; of an owner, without its electricity.")
    ] = None,
    terms: Annotated[
        str, typer.Option(metavar="TERMS", help="Of the prices: on-demand, reserved or spot.")
    ] = "on-demand",
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=given_path, help="Your own prices, as TOML.")
    ] = None,
    electricity: Annotated[float | None, typer.Option(metavar="USD", help="A kWh.")] = None,
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="The grid, for carbon: FR, US-TEX-ERCO, us-east-1.")
    ] = None,
    usage: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=given_path, help="CSV of what was measured: job,busy_share,power_w."),
    ] = None,
    checkpoint_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often jobs save what they have, as 30m.")
    ] = None,
    project: Annotated[
        str, typer.Option(metavar="COLUMN", help="What tells projects apart: wckey, qos, partition, user, jobname.")
    ] = "wckey",
    team: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of recordings, which do not tell their team.")
    ] = None,
    budget: Annotated[
        list[str] | None, typer.Option(metavar="TEAM=USD", help="Of the time in the files. May be repeated.")
    ] = None,
    budget_period: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of the budgets, from the first job on, as 30d: warns ahead.")
    ] = None,
    fail_on_budget: Annotated[
        bool, typer.Option("--fail-on-budget", help="Exit with 1 if one is or will be over, or cannot be judged.")
    ] = False,
    work_hours: Annotated[float | None, typer.Option(metavar="N", help="spot: work of the job, in hours.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="spot: from its start, as 36h.")] = None,
    instances: Annotated[int, typer.Option(min=1, metavar="N", help="spot: it needs, all at once.")] = 1,
    gpus_per_instance: Annotated[int, typer.Option(min=1, metavar="N", help="spot: for its price.")] = 1,
    spot_price: Annotated[float | None, typer.Option(metavar="USD", help="spot: an hour of one GPU.")] = None,
    checkpoint_cost: Annotated[str, typer.Option(metavar="TIME", help="spot: a save stops the job so long.")] = "30s",
    restart: Annotated[str, typer.Option(metavar="TIME", help="spot: from a start until it works.")] = "5m",
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Charge GPU time to teams: used, idle-held and lost, in GPU-hours, USD, kWh and kg of CO2.

    \b
    Examples:
      flatout cost jobs.txt --gpu-type h100 --region us-east-1 --budget vision=20000
      flatout cost power-cap curve.csv --gpu-price 2.10 --electricity 0.09
      flatout cost spot us-west-2a.json --work-hours 24 --deadline 36h --gpu-type v100 --spot-price 0.30
    """
    from flatout.errors import UsageError

    action = paths[0] if paths[0] in _ACTIONS and not Path(paths[0]).exists() else None
    given = [given_path(path) for path in paths[1 if action else 0 :]]
    if action and len(given) != 1:
        raise UsageError(f"`flatout cost {action}` takes one file, but got {len(given)}")
    known = _prices(prices, electricity)
    price = _usd("--gpu-price", gpu_price)
    if action == "power-cap":
        _power_cap(given[0], known, gpu_type, terms, price, json=json)
    elif action == "spot":
        _spot(
            given[0],
            known,
            gpu_type=gpu_type,
            on_demand=price,
            spot_price=_usd("--spot-price", spot_price),
            work_hours=work_hours,
            deadline=deadline,
            instances=instances,
            gpus_per_instance=gpus_per_instance,
            checkpoint_interval=checkpoint_interval,
            checkpoint_cost=checkpoint_cost,
            restart=restart,
            json=json,
        )
    else:
        found, usages = _attempts(given, project, team)
        if usage is not None:
            from flatout.read.usage import read_usage

            usages |= read_usage(usage)
        tariff = _tariff(known, terms, price, gpu_type, region)
        result = _charged(found, usages, tariff, budget, budget_period, checkpoint_interval)
        _print(result, json=json)
        if fail_on_budget and any(one.status in ("over", "will be over", "unknown") for one in result.budgets):
            raise typer.Exit(1)


def _prices(path: Path | None, electricity: float | None) -> Prices:
    import msgspec

    from flatout.catalog.prices import all_prices, exactly, read_prices

    known = all_prices() if path is None else read_prices(path)
    usd = _usd("--electricity", electricity)
    return known if usd is None else msgspec.structs.replace(known, electricity=exactly(usd, "--electricity"))


def _usd(option: str, value: float | None) -> float | None:
    from flatout.errors import UsageError

    if value is not None and not 0 <= value <= LARGEST:
        raise UsageError(f"`{option}` must be USD from 0 to {LARGEST:,.0f}, but is {value:g}")
    return value


def _tariff(prices: Prices, terms: str, gpu_price: float | None, gpu_type: str | None, region: str | None) -> Tariff:
    from flatout.catalog.carbon import grid_carbon
    from flatout.catalog.prices import exactly
    from flatout.cost.chargeback import Tariff

    own: Range | None = exactly(gpu_price, "--gpu-price") if gpu_price is not None else None
    return Tariff(
        prices=prices,
        terms=_terms(terms),
        usd_per_gpu_hour=own,
        gpu=_known_gpu(gpu_type, prices),
        grid=grid_carbon(region) if region is not None else None,
    )


def _terms(text: str) -> Terms:
    from flatout.catalog.prices import TERMS
    from flatout.errors import UsageError

    for known in TERMS:
        if known == text:
            return known
    raise UsageError(f"`--terms` must be one of {', '.join(TERMS)}, but is `{text}`")


def _known_gpu(name: str | None, prices: Prices) -> str | None:
    """A name with a typing mistake would only make money unknown."""
    from flatout.catalog.prices import gpu_named
    from flatout.errors import UsageError

    if name is None or gpu_named(name) is not None or any(price.gpu == name for price in prices.gpus):
        return name
    raise UsageError(
        f"`--gpu-type` must be a GPU of the catalogue or of your prices, but is `{name}`",
        hint="as h100, a100-80gb or `H100 PCIe 80GB`; docs/reference/gpus.md lists them",
    )


def _attempts(paths: list[Path], project: str, team: str | None) -> tuple[Attempts, dict[str, Usage]]:
    """Recordings count as attempts of their own, unless the accounting has their job; either way they tell its use."""
    from flatout.cli.progress import Progress
    from flatout.cost.recorded import recorded_attempt
    from flatout.profile.read_recording import is_recording, read_recording
    from flatout.read.sacct import merged, parse_sacct, read_sacct
    from flatout.records.attempts import Attempts

    files, recorded, usages = [], [], {}
    for path in paths:
        if is_recording(path):
            attempt, usage = recorded_attempt(read_recording(path), team=team)
            recorded.append((path, attempt))
            usages[usage.job] = usage
        elif str(path) == "-":
            files.append(parse_sacct(sys.stdin.buffer.read(), name="standard input", project=project))
        else:
            with Progress(f"reading {path}") as progress:
                files.append(read_sacct(path, project=project, progress=progress.show))
    accounted = {attempt.job for file in files for attempt in file.attempts}
    files += [
        Attempts(path=str(path), attempts=(attempt,), num_rows=1)
        for path, attempt in recorded
        if attempt.job not in accounted
    ]
    return (files[0] if len(files) == 1 else merged(files)), usages


def _charged(
    found: Attempts,
    usages: dict[str, Usage],
    tariff: Tariff,
    budgets: list[str] | None,
    budget_period: str | None,
    checkpoint_interval: str | None,
) -> Chargeback:
    from flatout.cost.chargeback import chargeback

    interval_s = time_s("--checkpoint-interval", checkpoint_interval) if checkpoint_interval is not None else None
    return chargeback(
        found,
        usages,
        tariff,
        budgets=_budgets(budgets or []),
        budget_period_s=time_s("--budget-period", budget_period) if budget_period is not None else None,
        checkpoint_interval_s=interval_s,
    )


def _budgets(texts: list[str]) -> dict[str, float]:
    from flatout.errors import UsageError

    found: dict[str, float] = {}
    for text in texts:
        team, _, usd = text.rpartition("=")
        try:
            value = float(usd)
        except ValueError:
            value = math.nan
        if not team or not 0 <= value < math.inf or team in found:
            raise UsageError(f"`--budget` must be TEAM=USD, once a team, but got `{text}`")
        found[team] = value
    return found


def time_s(option: str, text: str) -> float:
    from flatout.errors import UsageError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"`{option}` must be a time above 0 as 90s, 30m, 36h or 2d, but is `{text}`")
    return float(match[1]) * _UNITS_S[match[2]]


def _print(result: Chargeback, *, json: bool) -> None:
    from flatout.report.cost_text import chargeback_text, next_options
    from flatout.report.json import enveloped_json
    from flatout.report.terminal import style_of

    if json:
        sys.stdout.write(enveloped_json("flatout/cost", 1, ["flatout", *sys.argv[1:]], result).decode())
        return
    words, more = again(sys.argv[1:]), next_options(result)
    if has_option(words, more[0]):  # it was given, and did not tell all
        more = ["--json"]
    print(chargeback_text(result, style=style_of(sys.stdout), next_command=shlex.join([*words, *more])))


def _power_cap(
    path: Path, prices: Prices, gpu_type: str | None, terms: str, gpu_price: float | None, *, json: bool
) -> None:
    from flatout.cost.power_cap import cap_advice
    from flatout.read.power_curve import read_power_curve
    from flatout.report.cost_text import cap_text
    from flatout.report.json import enveloped_json
    from flatout.report.terminal import style_of

    known = prices.gpu(_known_gpu(gpu_type, prices) or "", _terms(terms))
    usd = gpu_price if gpu_price is not None else known.typical if known is not None else None
    result = cap_advice(read_power_curve(path), path=str(path), prices=prices, usd_per_gpu_hour=usd)
    if json:
        sys.stdout.write(enveloped_json("flatout/power-cap", 1, ["flatout", *sys.argv[1:]], result).decode())
    else:
        print(cap_text(result, style=style_of(sys.stdout)))


def _spot(
    path: Path,
    prices: Prices,
    *,
    gpu_type: str | None,
    on_demand: float | None,
    spot_price: float | None,
    work_hours: float | None,
    deadline: str | None,
    instances: int,
    gpus_per_instance: int,
    checkpoint_interval: str | None,
    checkpoint_cost: str,
    restart: str,
    json: bool,
) -> None:
    from flatout.errors import UsageError
    from flatout.report.cost_text import spot_text
    from flatout.report.json import enveloped_json
    from flatout.report.terminal import style_of

    if work_hours is None or deadline is None or not 0 < work_hours < math.inf:
        raise UsageError(
            "`flatout cost spot` needs --work-hours above 0 and --deadline",
            hint="flatout cost spot TRACE --work-hours 24 --deadline 36h --gpu-type h100",
        )
    result = spot_result(
        path,
        work_hours=work_hours,
        deadline_s=time_s("--deadline", deadline),
        instances=instances,
        gpus_per_instance=gpus_per_instance,
        gpu_type=gpu_type,
        prices=prices,
        on_demand=on_demand,
        spot_price=spot_price,
        interval_s=time_s("--checkpoint-interval", checkpoint_interval) if checkpoint_interval is not None else None,
        checkpoint_cost_s=time_s("--checkpoint-cost", checkpoint_cost),
        restart_s=time_s("--restart", restart),
    )
    if json:
        sys.stdout.write(enveloped_json("flatout/spot", 1, ["flatout", *sys.argv[1:]], result).decode())
    else:
        print(spot_text(result, style=style_of(sys.stdout)))


def spot_result(
    path: Path,
    *,
    work_hours: float,
    deadline_s: float,
    instances: int,
    gpus_per_instance: int,
    gpu_type: str | None,
    prices: Prices | None = None,
    on_demand: float | None = None,
    spot_price: float | None = None,
    interval_s: float | None = None,
    checkpoint_cost_s: float = 30.0,
    restart_s: float = 300.0,
) -> SpotAdvice:
    """Also for `flatout submit`. Prices that are not given are the catalogue's; the interval is Young's."""
    from flatout.catalog.prices import all_prices
    from flatout.cost.spot import SpotJob, availability, spot_advice, youngs_interval_s
    from flatout.errors import UsageError
    from flatout.read.spot_trace import read_spot_trace

    prices = prices or all_prices()
    name = _known_gpu(gpu_type, prices) or ""
    known = {terms: prices.gpu(name, _terms(terms)) for terms in ("on-demand", "spot")}
    if on_demand is None and known["on-demand"] is not None:
        on_demand = known["on-demand"].typical
    if spot_price is None and known["spot"] is not None:
        spot_price = known["spot"].typical
    if spot_price is None or on_demand is None:
        raise UsageError(
            f"the price of a GPU-hour {'on spot' if spot_price is None else 'on demand'} is not known",
            hint="a --gpu-type with both prices, as h100, or `flatout cost spot` with --spot-price and --gpu-price",
        )
    trace = read_spot_trace(path)
    mean_s = availability(trace, instances).mean_time_to_loss_s
    job = SpotJob(
        work_s=work_hours * 3600,
        deadline_s=deadline_s,
        checkpoint_interval_s=interval_s
        or (youngs_interval_s(checkpoint_cost_s, mean_s) if mean_s else work_hours * 3600),
        checkpoint_cost_s=checkpoint_cost_s,
        restart_s=restart_s,
        num_instances=instances,
    )
    return spot_advice(
        trace,
        job,
        spot_usd_per_h=spot_price * gpus_per_instance,
        on_demand_usd_per_h=on_demand * gpus_per_instance,
        is_interval_youngs=interval_s is None and mean_s is not None,
    )
