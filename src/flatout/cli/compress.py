"""`flatout compress`: find the compressed variants of a model that are faster and no worse than a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.durations import Duration
from flatout.cli.output import text_style, typed_command
from flatout.cli.searches import budget_option, ended_by_signals, json_option, out_option, say, trials_option


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
    budget: Annotated[Duration, budget_option("")] = Duration("1h", 3600.0),
    trials: Annotated[int | None, trials_option("trials of each comparison of speeds")] = None,
    out: Annotated[Path | None, out_option("variants and results", "compress")] = None,
    json: Annotated[bool, json_option()] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result in DIR.")] = False,
) -> None:
    """Find the compressed variants of a model that are faster or smaller, and no worse than a limit.

    Each variant is applied to your unmodified script. Nothing is recommended that was not applied, is slower, or is not
    shown to lose less than the limit on data that chose nothing.

    Exits with code 0 if a variant is recommended, otherwise with 1.

    Example: flatout compress --eval 'python eval.py' --metric accuracy --max-loss 1% --bench 'python infer.py'
    """
    from flatout.api import compress as compress_model
    from flatout.compress.commands import parse_batches

    with ended_by_signals():
        result = compress_model(
            evaluation,
            bench,
            metric=metric,
            max_loss=max_loss,
            model=model,
            final_evaluation=eval_final,
            batches=parse_batches(batches),
            variants=tuple(name.strip() for name in variants.split(",")) if variants is not None else (),
            lower_is_better=lower_is_better,
            budget_s=budget.seconds,
            trials=trials,
            out=out,
            force=force,
            typed=typed_command(),
            say=say,
        )
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
    else:
        from flatout.report.compression_text import compression_text

        print(compression_text(result, result.folder, style=text_style()))
    raise typer.Exit(0 if result.recommended else 1)
