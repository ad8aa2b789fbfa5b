"""`flatout compress`: find the compressed variants of a model that are faster and no worse than a limit."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import text_style, typed_command
from flatout.cli.values import whole_number

_MOST_S = 30 * 86_400.0


def compress(
    evaluation: Annotated[
        str,
        typer.Option("--eval", metavar="CMD", help="Command that prints the metric of your model.", show_default=False),
    ],
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the metric in the last line that has it.", show_default=False)
    ],
    max_loss: Annotated[
        str,
        typer.Option(
            metavar="LOSS",
            help="Largest acceptable loss: a share of the metric, e.g. 1%, or an amount.",
            show_default=False,
        ),
    ],
    bench: Annotated[
        str,
        typer.Option(
            metavar="CMD",
            help="Command that calls the model again and again; {batch} stands for the batch size.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder or .onnx file of the model, for {model} in both commands."),
    ] = None,
    eval_final: Annotated[
        str | None,
        typer.Option(
            metavar="CMD", help="Evaluation on data that chose nothing. [default: every second sample of --eval]"
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="N,N", help="Batch sizes for {batch} in the benchmark, e.g. 1,8,64.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Variants to try. [default: all that this machine can]")
    ] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option("--lower-is-better/--higher-is-better", help="Direction of the metric. [default: by its name]"),
    ] = None,
    budget: Annotated[Duration, duration(least_s=1.0, most_s=_MOST_S, help="Time limit.")] = Duration("1h", 3600.0),
    trials: Annotated[
        int | None, whole_number(least=4, help="Maximum number of trials of each comparison of speeds, at least 4.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for variants and results. [default: flatout-out/compress-TIME]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result in DIR.")] = False,
) -> None:
    """Find the compressed variants of a model that are faster or smaller, and no worse than a limit.

    Each variant is applied to your unmodified script. Nothing is recommended that was not applied, is slower, or is not
    shown to lose less than the limit on data that chose nothing.

    Exits with code 0 if a variant is recommended, otherwise with 1.

    Example: flatout compress --eval 'python eval.py' --metric accuracy --max-loss 1% --bench 'python infer.py'
    """
    from flatout.compress.command import CompressCommand
    from flatout.compress.commands import is_higher_better, parse_batches, parse_max_loss, user_command
    from flatout.tune.signals import EndedBySignal

    command = CompressCommand(
        evaluation=user_command("--eval", evaluation),
        benchmark=user_command("--bench", bench),
        final=None if eval_final is None else user_command("--eval-final", eval_final),
        metric=metric,
        max_loss=parse_max_loss(max_loss),
        is_higher_better=is_higher_better(metric) if lower_is_better is None else not lower_is_better,
        folder=out or Path("flatout-out") / f"compress-{time.strftime('%Y%m%d-%H%M%S')}",
        model=model,
        variants=tuple(name.strip() for name in variants.split(",")) if variants is not None else (),
        batches=parse_batches(batches),
        budget_s=budget.seconds,
        max_trials=trials,
        force=force,
    )
    try:
        result = command.run(_say)
    except EndedBySignal as signal:
        raise typer.Exit(128 + signal.number) from signal
    written = command.write(result, typed_command())
    if json:
        from flatout.report.compression_json import compression_json

        sys.stdout.write(compression_json(result, typed_command()).decode())
    else:
        from flatout.report.compression_text import compression_text

        print(compression_text(result, command.folder, style=text_style()))
    for line in written:
        _say(line)
    raise typer.Exit(0 if result.recommended else 1)


def _say(line: str) -> None:
    print(f"flatout: {line}", file=sys.stderr, flush=True)
