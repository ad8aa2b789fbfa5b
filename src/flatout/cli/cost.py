"""`flatout cost jobs`: GPU time that teams used, held idle and lost; `buy`, `power-cap`, `spot`, `carbon`: savings."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli import cost_carbon
from flatout.cli.cost_sweep import swept
from flatout.cli.durations import Duration, duration
from flatout.cli.help import Command, Group
from flatout.cli.next_command import has_option, repeated
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.paths import given_path, path_argument, path_option
from flatout.cli.values import amount, whole_number
from flatout.secrets import masked_command
from flatout.units import MOST_USD_PER_GPU_HOUR, MOST_USD_PER_KWH

if TYPE_CHECKING:
    from flatout.records.chargeback import Chargeback


class _CostGroup(Group):
    """A group that refuses `flatout cost FILE`, which says neither what the file is nor what to do with it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        from flatout.errors import UsageError

        is_known = not args or args[0] in (*self.commands, "-h", "--help")
        if not is_known and not ctx.resilient_parsing:
            raise UsageError(
                f"`flatout cost` needs one of {', '.join(self.commands)}, but got `{args[0]}`",
                hint=f"to charge jobs: flatout cost jobs {shlex.join(masked_command(args))}",
            )
        return super().parse_args(ctx, args)  # type: ignore[arg-type, unused-ignore]


app = typer.Typer(
    cls=_CostGroup,
    help="Charge GPU time to teams, and find what would cost less: buying, a power cap, spot instances, another hour.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GpuType = Annotated[
    str | None, typer.Option("--gpu-type", metavar="NAME", help="GPU type, if the input does not name it, e.g. h100.")
]
GpuPrice = Annotated[
    float | None,
    amount(
        "--gpu-price",
        metavar="USD",
        most=MOST_USD_PER_GPU_HOUR,
        help="Price per GPU-hour, without electricity if you own the hardware.",
    ),
]
PriceTerms = Annotated[
    str, typer.Option("--terms", metavar="TERMS", help="Catalogue price type: on-demand, reserved or spot.")
]
PriceFile = Annotated[Path | None, path_option("--prices", help="TOML file with your own prices.")]
Electricity = Annotated[
    float | None,
    amount("--electricity", metavar="USD", most=MOST_USD_PER_KWH, help="Electricity price per kWh."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(cls=Command)
def jobs(
    paths: Annotated[
        list[Path],
        path_argument(
            metavar="PATH...",
            help="Output of `sacct -aPD`, or recordings from `flatout profile`; `-` is standard input.",
        ),
    ],
    gpu_type: GpuType = None,
    gpu_price: GpuPrice = None,
    terms: PriceTerms = "on-demand",
    prices: PriceFile = None,
    electricity: Electricity = None,
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Power grid, for carbon emissions, e.g. FR, US-TEX-ERCO or us-east-1."),
    ] = None,
    usage: Annotated[
        Path | None,
        path_option(help="CSV of measured usage: job,busy_share,power_w."),
    ] = None,
    checkpoint_interval: Annotated[
        Duration | None, duration(help="Time between checkpoints, if the input does not say.")
    ] = None,
    project: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Column that names the project: wckey, qos, partition, user, jobname."),
    ] = "wckey",
    team: Annotated[
        str | None, typer.Option(metavar="NAME", help="Team to charge for recordings, which do not name a team.")
    ] = None,
    budget: Annotated[list[str] | None, typer.Option(metavar="TEAM=USD", help="Budget for a team. Repeatable.")] = None,
    budget_period: Annotated[
        Duration | None,
        duration(
            help="Period of the budgets, from the start of the first job; also warns of budgets that will be exceeded."
        ),
    ] = None,
    fail_on_budget: Annotated[
        bool,
        typer.Option(
            "--fail-on-budget", help="Exit with code 1 if a budget is or will be exceeded, or cannot be checked."
        ),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a row for each team and project as CSV.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Also write the charges as an HTML page.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: AsJson = False,
) -> None:
    """Charge GPU time to teams: used, held idle and lost, in GPU-hours, USD, kWh and kg of CO2.

    Example: flatout cost jobs jobs.txt --gpu-type h100 --region us-east-1 --budget vision=20000
    """
    from flatout.cost_pipeline import PriceOptions, charge
    from flatout.errors import UsageError
    from flatout.report.progress import ProgressLine

    if fail_on_budget and not budget:
        raise UsageError("`--fail-on-budget` needs a --budget to check", hint="--budget TEAM=USD")
    for file in (csv, html):
        if file is not None:
            _check_new(file, force=force)
    options = PriceOptions(
        gpu_type=gpu_type, usd_per_gpu_hour=gpu_price, terms=terms, file=prices, usd_per_kwh=electricity
    )
    with ProgressLine("reading the accounting") as progress:
        result = charge(
            paths,
            options,
            region=region,
            usage=usage,
            project=project,
            team=team,
            budgets=budget or (),
            budget_period_s=budget_period.seconds if budget_period is not None else None,
            checkpoint_interval_s=checkpoint_interval.seconds if checkpoint_interval is not None else None,
            progress=progress.show,
        )
    if csv is not None:
        _write_csv(csv, result, force=force)
    if html is not None:
        _write_page(html, result, force=force)
    if json:
        print_json("flatout/cost", result)
    else:
        from flatout.report.cost_text import chargeback_text

        print(chargeback_text(result, style=text_style(), next_command=_next_command(result)))
    if fail_on_budget and any(state.status in ("over", "will be over", "unknown") for state in result.budgets):
        raise typer.Exit(1)


def _next_command(result: Chargeback) -> str:
    """Return the same command with the option that adds most to the result."""
    from flatout.report.cost_text import next_options

    words = repeated(sys.argv[1:])
    more = next_options(result)
    if has_option(words, more[0]):  # the option was given, and something is still unknown
        more = ["--json"]
    return shlex.join([*words, *more])


def _check_new(path: Path, *, force: bool) -> None:
    from flatout.report.files import check_new

    check_new(path, force=force)


def _write_csv(path: Path, result: Chargeback, *, force: bool) -> None:
    from flatout.report.csv_rows import csv_text
    from flatout.report.files import write_new

    write_new(path, csv_text(result.teams), force=force)
    print(f"wrote {path}", file=sys.stderr)


def _write_page(path: Path, result: Chargeback, *, force: bool) -> None:
    from flatout.report.files import write_new
    from flatout.report.tables_html import chargeback_html

    write_new(path, chargeback_html(result, typed_command()), force=force)
    print(f"wrote {path}", file=sys.stderr)


@app.command(cls=Command)
def buy(
    ownership: Annotated[
        Path,
        path_argument(
            metavar="OWNERSHIP.toml",
            help="TOML file, e.g. num_gpus = 64, price = 2_400_000, life_years = 5, utilisation = 0.7,"
            " power_w_per_gpu = 1_250, pue = 1.3, electricity_per_kwh = 0.11, people_per_year = 200_000,"
            " rent_per_gpu_hour = 2.5, one per line.",
        ),
    ],
    gpu_type: GpuType = None,
    gpu_price: Annotated[
        float | None, amount("--gpu-price", metavar="AMOUNT", most=1e5, help="Rent per GPU-hour.")
    ] = None,
    terms: PriceTerms = "on-demand",
    prices: PriceFile = None,
    json: AsJson = False,
) -> None:
    """Compare buying GPUs with renting them: the utilisation, and the month, from which buying costs less.

    Example: flatout cost buy ownership.toml --gpu-type h100 --terms reserved
    """
    from flatout.cost_pipeline import PriceOptions, advise_buying

    options = PriceOptions(gpu_type=gpu_type, usd_per_gpu_hour=gpu_price, terms=terms, file=prices)
    result = advise_buying(ownership, options)
    if json:
        print_json("flatout/buy-or-rent", result)
        return
    from flatout.report.buying_text import buying_text

    print(buying_text(result, style=text_style()))


@app.command("power-cap", cls=Command)
def power_cap(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CURVE.csv|COMMAND...",
            help="Workloads measured at each power limit; with --sweep, the command to measure, after `--`.",
            show_default=False,
        ),
    ],
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure the curve of a command here; without --apply, only say how.")
    ] = False,
    limits: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,...", help="Power limits to measure. [default: tenths, from the current one to half]"
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Set the limits of all GPUs here, as root, and put them back at the end.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", readable=False, help="Write the measured curve to this file.")
    ] = Path("power-curve.csv"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    gpu_type: GpuType = None,
    gpu_price: GpuPrice = None,
    terms: PriceTerms = "on-demand",
    prices: PriceFile = None,
    electricity: Electricity = None,
    json: AsJson = False,
) -> None:
    """Find the knee of measured power-cap curves, and determine whether a cap pays off at the given prices.

    Example: flatout cost power-cap curve.csv --gpu-price 2.10 --electricity 0.09

    Example: flatout cost power-cap --sweep --apply -- torchrun --nproc-per-node 8 train.py --steps 300
    """
    from flatout.cost_pipeline import PriceOptions, advise_power_cap
    from flatout.errors import UsageError

    if not sweep and (limits is not None or apply or len(words) > 1):
        raise UsageError(
            "without `--sweep`, `flatout cost power-cap` takes one measured curve and no limits",
            hint="to measure one: flatout cost power-cap --sweep -- COMMAND",
        )
    curve = swept(words, limits, applies=apply, out=out, force=force) if sweep else given_path(words[0])
    if curve is None:
        return
    options = PriceOptions(
        gpu_type=gpu_type, usd_per_gpu_hour=gpu_price, terms=terms, file=prices, usd_per_kwh=electricity
    )
    result = advise_power_cap(curve, options)
    if json:
        print_json("flatout/power-cap", result)
        return
    from flatout.report.cost_text import cap_text

    print(cap_text(result, style=text_style()))


@app.command(cls=Command)
def spot(
    trace: Annotated[
        Path,
        path_argument(metavar="TRACE", help="Spot-instance availability trace."),
    ],
    work_hours: Annotated[
        float, amount(metavar="N", positive=True, help="Hours that the job takes without interruptions.")
    ],
    deadline: Annotated[Duration, duration(help="Deadline for the job to finish, measured from its start.")],
    instances: Annotated[int, whole_number(least=1, help="Number of instances that the job needs at once.")] = 1,
    gpus_per_instance: Annotated[int, whole_number(least=1, help="GPUs per instance, to compute its price.")] = 1,
    gpu_type: GpuType = None,
    gpu_price: GpuPrice = None,
    spot_price: Annotated[
        float | None,
        amount(metavar="USD", most=MOST_USD_PER_GPU_HOUR, help="Price per GPU-hour on spot instances."),
    ] = None,
    prices: PriceFile = None,
    checkpoint_interval: Annotated[
        Duration | None,
        duration(help="Interval between checkpoints. [default: Young's interval]"),
    ] = None,
    checkpoint_cost: Annotated[Duration, duration(help="How long each checkpoint pauses the job.")] = Duration(
        "30s", 30.0
    ),
    restart: Annotated[Duration, duration(help="Time from the start of the instances to the first step.")] = Duration(
        "5m", 300.0
    ),
    json: AsJson = False,
) -> None:
    """Replay a job on a spot availability trace: on spot instances, on demand, or on both.

    Example: flatout cost spot us-west-2a.json --work-hours 24 --deadline 36h --gpu-type v100 --spot-price 0.30
    """
    from flatout.cost_pipeline import S_PER_H, PriceOptions, SpotRequest, advise_spot

    request = SpotRequest(
        trace=trace,
        work_s=work_hours * S_PER_H,
        deadline_s=deadline.seconds,
        num_instances=instances,
        gpus_per_instance=gpus_per_instance,
        spot_usd_per_gpu_hour=spot_price,
        checkpoint_interval_s=checkpoint_interval.seconds if checkpoint_interval is not None else None,
        checkpoint_cost_s=checkpoint_cost.seconds,
        restart_s=restart.seconds,
    )
    options = PriceOptions(gpu_type=gpu_type, usd_per_gpu_hour=gpu_price, file=prices)
    result = advise_spot(request, options)
    if json:
        print_json("flatout/spot", result)
        return
    from flatout.report.cost_text import spot_text

    print(spot_text(result, style=text_style()))


cost_carbon.register(app)
