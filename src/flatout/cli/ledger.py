"""`flatout ledger`: the totals of a goodput ledger, in GPU-hours, money and energy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.fail_on import exit_if_met, fail_on_option
from flatout.cli.output import print_json, text_style
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.keep.ledger import Totals


def ledger(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Ledgers from `flatout run --ledger`: files, or a folder with one per node. Or the log of a training.",
        ),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU type, for its price and power. [default: from the ledger]"),
    ] = None,
    gpu_price: Annotated[
        float | None, amount(metavar="PRICE", help="Price per GPU-hour. [default: the catalogue's price, in USD]")
    ] = None,
    gpu_watts: Annotated[
        float | None, amount(metavar="WATTS", help="Average power per GPU. [default: power limit]")
    ] = None,
    gpus: Annotated[
        int | None, whole_number(least=1, help="GPUs of the training whose log is read.  [default: 1]")
    ] = None,
    fail_on: Annotated[list[str] | None, fail_on_option("ledger")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show how each GPU-second of a job was used: productive, recomputed, checkpoint, restart, hang, and others.

    A log of Megatron-LM, NeMo, DeepSpeed, torchtitan or MLPerf shows only steps, resumed runs, and the time between.

    Example: flatout ledger ledger.jsonl --gpu-price 2.50
    """
    from flatout.conditions.met import met_by_ledger
    from flatout.conditions.words import parse_conditions
    from flatout.keep.account import CLASSES
    from flatout.keep.ledger_merge import read_all
    from flatout.keep.ledger_report import report

    conditions = parse_conditions("ledger", fail_on or (), CLASSES)
    totals = _of_log(paths, gpus) or read_all(paths)
    gpu_type = gpu or totals.gpu
    result = report(totals, price_per_h=_price(gpu_type, gpu_price), watts=_watts(gpu_type, gpu_watts))
    if json:
        print_json("flatout/ledger-report", result)
    else:
        from flatout.report.ledger_text import ledger_text

        print(ledger_text(result, style=text_style()))
    exit_if_met(met_by_ledger(result, conditions))


def _of_log(paths: list[Path], gpus: int | None) -> Totals | None:
    """Return the totals of the log of a training; None if the files are ledgers."""
    from flatout.errors import UsageError
    from flatout.training_log_pipeline import log_totals

    totals = log_totals(paths[0], gpus or 1) if len(paths) == 1 else None
    if totals is None and gpus is not None and paths[0].exists():
        raise UsageError("`--gpus` is for the log of a training: a ledger has the number", hint="omit --gpus")
    if totals is not None:
        where = "in `unknown`" if totals.ns["unknown"] or totals.ns["restart"] else "unknown without time stamps"
        print(f"note: the time between the logged steps is {where}: evaluations, checkpoints, others", file=sys.stderr)
    return totals


def _price(gpu: str | None, usd_per_gpu_hour: float | None) -> tuple[float, str] | None:
    """Return the price per GPU-hour and where it comes from."""
    from flatout.catalog.prices import all_prices

    if usd_per_gpu_hour is not None:
        return usd_per_gpu_hour, "as given"
    price = all_prices().gpu(gpu) if gpu is not None else None
    return (float(price.typical), f"typical for {price.gpu}, {price.date}") if price is not None else None


def _watts(gpu: str | None, watts: float | None) -> tuple[float, str] | None:
    """Return the average power of a GPU and where it comes from."""
    from flatout.catalog.gpus import gpu_facts

    if watts is not None:
        return watts, "as given"
    facts = gpu_facts(gpu) if gpu is not None else None
    if facts is None or facts.tdp_w is None:
        return None
    return facts.tdp_w, "its power limit: at most"
