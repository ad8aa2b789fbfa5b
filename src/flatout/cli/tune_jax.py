"""`flatout tune jax`: try settings of XLA and JAX on a JAX job, and keep what is faster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style
from flatout.cli.searches import say
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.records.xla_tuning import XlaTuning

SCHEMA = "flatout/xla-tuning"
RESULT = "tuning.json"


def tune_jax(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="Command of a JAX job that marks its steps, after `--`; {trial_dir} becomes the trial's folder.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for trials and the result. [default: flatout-out/jax-TIME]"),
    ] = None,
    budget: Annotated[
        Duration, duration(least_s=10.0, most_s=30 * 86_400.0, help="Time limit for all trials.")
    ] = Duration("20m", 1200.0),
    steps: Annotated[
        int, whole_number(least=3, most=100_000, help="Steps of a trial, after the last compilation; then it ends.")
    ] = 30,
    warmup: Annotated[int, whole_number(most=100_000, help="Steps before them, at least.")] = 3,
    allow: Annotated[
        str, typer.Option(metavar="SAFETY", help="Which changes to try: exact, or rounding for other kernels too.")
    ] = "exact",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Try only this change: xla-latency-hiding, xla-combine=128, ... Repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Try settings of XLA and JAX on a JAX job: each in pairs of fresh starts, with a verdict.

    The job is ended after some steps of each trial. Losses are compared where the script reports them with
    `flatout.callbacks.report_loss`; otherwise changes are only timed. Exits with code 0 if a change is better, else 1.

    Example: flatout tune jax --budget 20m -- python train.py --workdir {trial_dir}
    """
    from flatout.errors import UsageError
    from flatout.report.files import write_new
    from flatout.report.json import enveloped_json
    from flatout.report.paths import relative_path
    from flatout.report.xla_tuning_text import xla_tuning_text
    from flatout.secrets import masked_command
    from flatout.xla_tuner.changes import check_names
    from flatout.xla_tuner.tune import XlaRequest, tune_xla

    if not command:
        raise UsageError("a command is needed", hint="flatout tune jax -- python train.py")
    if allow not in ("exact", "rounding"):
        raise UsageError(f"`--allow` must be exact or rounding, but is `{allow}`")
    check_names(only or ())
    folder = (out or Path("flatout-out") / f"jax-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if folder.exists():
        raise UsageError(f"`{folder}` already exists", hint="pass another name with --out")
    request = XlaRequest(
        command=tuple(command),
        folder=folder,
        budget_s=budget.seconds,
        num_steps=steps,
        warmup=warmup,
        allows_rounding=allow == "rounding",
        only=tuple(only or ()),
    )
    tuning: XlaTuning = tune_xla(request, say)
    tuning = _masked(tuning, tuple(masked_command(command)))
    write_new(folder / RESULT, enveloped_json(SCHEMA, 1, masked_command(sys.argv), tuning).decode(), force=False)
    if json:
        print_json(SCHEMA, tuning)
    else:
        print(xla_tuning_text(tuning, style=text_style()))
    say(f"wrote {relative_path(folder / RESULT)}")
    raise typer.Exit(0 if any(tried.verdict == "better" for tried in tuning.tried) else 1)


def _masked(tuning: XlaTuning, command: tuple[str, ...]) -> XlaTuning:
    import msgspec

    return msgspec.structs.replace(tuning, command=command)
