"""`flatout ledger`: what a goodput ledger adds up to, in GPU-hours, money and energy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def ledger(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="What `flatout run --ledger` wrote: files, or a folder of several nodes'."
        ),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The GPU, for its price and power.", show_default="as the ledger says"),
    ] = None,
    gpu_price: Annotated[
        float | None,
        typer.Option(metavar="PRICE", min=0.0, help="What a GPU-hour costs.", show_default="the catalogue's, in USD"),
    ] = None,
    gpu_watts: Annotated[
        float | None,
        typer.Option(metavar="WATTS", min=0.0, help="What a GPU draws on average.", show_default="its power limit"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Where each GPU-second of a job went: productive, recomputed, checkpoint, restart, hang, and the rest.

    Example: flatout ledger ledger.jsonl --gpu-price 2.50
    """
    from flatout.cli.amounts import check_amounts
    from flatout.keep.books import read_all
    from flatout.keep.ledger_report import report

    given = {"--gpu-price": gpu_price, "--gpu-watts": gpu_watts}
    check_amounts({name: value for name, value in given.items() if value is not None})
    totals = read_all(paths)
    name = gpu or totals.gpu
    result = report(totals, price_per_h=price_of(name, gpu_price), watts=_watts(name, gpu_watts))
    if json:
        from flatout.report.json import enveloped_json

        sys.stdout.write(enveloped_json("flatout/ledger-report", 1, ["flatout", *sys.argv[1:]], result).decode())
        return
    from flatout.report.ledger_text import ledger_text
    from flatout.report.terminal import style_of

    print(ledger_text(result, style=style_of(sys.stdout)))


def price_of(gpu: str | None, given: float | None) -> tuple[float, str] | None:
    if given is not None:
        return given, "as given"
    if gpu is None:
        return None
    from importlib import import_module

    try:
        prices = import_module("flatout.catalog.prices").all_prices()
    except ImportError:  # a Flatout without the catalogue of prices
        return None
    found = prices.gpu(gpu)
    return None if found is None else (float(found.typical), f"typical for {found.gpu}, {found.date}")


def _watts(gpu: str | None, given: float | None) -> tuple[float, str] | None:
    if given is not None:
        return given, "as given"
    if gpu is None:
        return None
    from flatout.catalog.gpus import gpu_facts

    facts = gpu_facts(gpu)
    return None if facts is None or facts.tdp_w is None else (facts.tdp_w, "its power limit: at most")
