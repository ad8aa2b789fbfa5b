"""`flatout cost carbon`: the hour at which a job should start so that its grid emits least."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.help import Command
from flatout.cli.output import print_json, text_style
from flatout.cli.paths import path_argument
from flatout.cli.values import amount, whole_number


def register(app: typer.Typer) -> None:
    """Add the command to `flatout cost`."""
    app.command("carbon", cls=Command)(carbon)


def carbon(
    hours: Annotated[
        Path,
        path_argument(metavar="HOURS.csv", help="Grams of CO2 per kWh by hour: hour,g_per_kwh."),
    ],
    takes: Annotated[Duration, duration("--takes", least_s=60.0, most_s=31 * 86_400.0, help="How long the job takes.")],
    within: Annotated[
        Duration | None,
        duration(
            "--within",
            allows_zero=True,
            most_s=366 * 86_400.0,
            help="Latest start from now. [default: within a day, or as late as the file allows]",
        ),
    ] = None,
    power: Annotated[
        float | None, amount("--power", metavar="W", positive=True, help="Power of the whole job, to report kg of CO2.")
    ] = None,
    now: Annotated[
        int | None,
        whole_number("--now", most=23, metavar="HOUR", help="Hour that is now, for a file of 24 hours."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the hour at which a job would emit least, by the emissions of its grid: now, or some hours later.

    Example: flatout cost carbon grid.csv --takes 6h --power 11000
    """
    from flatout.cost.carbon_hours import carbon_advice
    from flatout.errors import UsageError
    from flatout.read.carbon_hours import read_carbon_hours

    found = read_carbon_hours(hours)
    if now is not None and not found.is_daily:
        raise UsageError(
            f"`--now` is for a file of 24 hours, but `{hours}` has dates, the first of which is now",
            hint="remove the hours that have passed from the file",
        )
    position = 0
    if found.is_daily:
        position = datetime.now().hour if now is None else now
    result = carbon_advice(
        found,
        path=str(hours),
        duration_h=takes.seconds / 3600,
        now=position,
        most_delay_h=None if within is None else int(within.seconds // 3600),
        power_w=power,
    )
    if json:
        print_json("flatout/carbon", result)
        return
    from flatout.report.carbon_text import carbon_text

    print(carbon_text(result, style=text_style()))
