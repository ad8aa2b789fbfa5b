"""`flatout tune`: the closed loop on a command; its report, and the configuration that won."""

from __future__ import annotations

import re
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flatout.records.change import Safety
    from flatout.records.tuning import TuneResult
    from flatout.records.verdict import Objective

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def tune(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for all of it.  [default: flatout-out/tune-TIME]")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="The time to spend: 90s, 10m, 2h.")] = "30m",
    trials: Annotated[int | None, typer.Option(min=4, metavar="N", help="At most so many trials.")] = None,
    allow: Annotated[
        str, typer.Option(metavar="SAFETY", help="What may be tried: exact, rounding, or semantic.")
    ] = "exact",
    objective: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="samples/s, tokens/s, steps/s, memory or energy.  [default: samples/s]"),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB", help="An argument of the script to try: 'batch={8,16}:--batch-size={}'."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=5, metavar="N", help="Settled steps a trial.  [default: as the noise asks for]")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Steps before they count.  [default: until they settle]")
    ] = None,
    launcher: Annotated[
        str, typer.Option(metavar="WHERE", help="Where trials run: local, or slurm (each as a batch job).")
    ] = "local",
    sbatch_options: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="For --launcher slurm: '--partition=gpu --nodes=2 --gpus-per-node=8'."),
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Predict without what earlier tunings measured, and keep nothing.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write the files for other tools too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a tuning that is in DIR.")] = False,
) -> None:
    """Find the changes that make a training command faster, without touching its code. Exits with 0 if one won, else 1.

    Example: flatout tune --budget 20m -- torchrun --standalone --nproc-per-node 2 train.py --out {trial_dir}
    """
    import msgspec

    from flatout.errors import OutputError
    from flatout.launch.guard import guarded
    from flatout.tune.files import former_date, history_path, learn, learned, open_tuning, write_results
    from flatout.tune.loop import tune as run_tuning
    from flatout.tune.options import TuneOptions, tune_request
    from flatout.tune.result import is_better

    _check_knobs(knob or (), command, _safety(allow))
    options = TuneOptions(
        allowed_safety=_safety(allow),
        objective=_objective(objective),
        budget_s=_duration(budget),
        max_trials=trials,
        num_steps=steps,
        knobs=tuple(knob or ()),
        uses_history=not no_history,
        sbatch_options=_sbatch_options(launcher, sbatch_options),
    )
    folder = out or Path("flatout-out") / f"tune-{time.strftime('%Y%m%d-%H%M%S')}"
    runner = open_tuning(
        command,
        folder,
        options,
        warmup=warmup,
        force=force,
        say=_say,
    )
    began_on = former_date(folder)  # where it goes on
    try:
        with _signals_raised(), guarded(runner.mark):
            known = learned(history_path(), but=began_on) if options.uses_history else None
            result = run_tuning(runner, options, _say, known)
    except (KeyboardInterrupt, _EndedBySignal) as error:
        _say(f"interrupted; the same command with --out {folder} goes on where it stopped")
        if isinstance(error, _EndedBySignal):
            raise typer.Exit(128 + error.number) from error
        raise
    result = msgspec.structs.replace(result, request=tune_request(options, warmup, applies=apply))
    if began_on is not None:
        result = msgspec.structs.replace(result, tuning=msgspec.structs.replace(result.tuning, date=began_on))
    try:
        written = write_results(result, folder, apply=apply, command=["flatout", *sys.argv[1:]])
    except OutputError as error:
        _report(result, folder, json=json)
        hint = "the result is shown, and its trials are kept: make room, and the same command with this --out writes it"
        raise OutputError(str(error), hint=hint) from error
    if options.uses_history:
        learn(result, history_path())
    _report(result, folder, json=json)
    for line in written:
        _say(line)
    raise typer.Exit(0 if is_better(result) else 1)


class _EndedBySignal(BaseException):
    """Somebody, such as a scheduler, asked this process to end: its job has to end with it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def _signals_raised() -> Iterator[None]:
    """SIGTERM and SIGHUP end the job, as Ctrl-C does, unless they are ignored (`nohup`)."""

    def end(number: int, _: object) -> None:
        raise _EndedBySignal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = {number: handler for number, handler in before.items() if handler is signal.SIG_DFL}
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def _report(result: TuneResult, folder: Path, *, json: bool) -> None:
    if json:
        from flatout.report.tuning_json import tuning_json

        sys.stdout.write(tuning_json(result, ["flatout", *sys.argv[1:]]).decode())
        return
    from flatout.report.tuning_text import tuning_text

    print(tuning_text(result, folder))


def _say(line: str) -> None:
    print(f"flatout: {line}", file=sys.stderr, flush=True)


def _sbatch_options(launcher: str, text: str | None) -> tuple[str, ...] | None:
    import shlex

    from flatout.errors import UsageError

    if launcher not in ("local", "slurm"):
        raise UsageError(f"`--launcher` must be local or slurm, but got {launcher}")
    if launcher == "local":
        if text is not None:
            raise UsageError("`--sbatch-options` needs `--launcher slurm`")
        return None
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"`--sbatch-options` is no line that a shell could read: {text}") from error


def _safety(text: str) -> Safety:
    from flatout.errors import UsageError
    from flatout.records.change import SAFETIES

    for safety in SAFETIES:
        if text == safety:
            return safety
    raise UsageError(f"`--allow` must be one of {', '.join(SAFETIES)}, but got {text}")


def _check_knobs(knobs: Sequence[str], command: Sequence[str], allowed_safety: Safety) -> None:
    """UsageError for what no job could be tuned by, before any trial is run."""
    from flatout.change.arguments import check_apart, knob_changes, parse_knob
    from flatout.records.change import JobFacts

    parsed = [parse_knob(text) for text in knobs]
    check_apart(parsed)
    for knob in parsed:
        knob_changes(knob, command, JobFacts(has_batch_norm=False), allowed_safety)


def _objective(text: str | None) -> Objective | None:
    from flatout.errors import UsageError
    from flatout.tune.options import OBJECTIVES

    if text is None:
        return None
    if text not in OBJECTIVES:
        raise UsageError(f"`--objective` must be one of {', '.join(OBJECTIVES)}, but got {text}")
    return OBJECTIVES[text]


def _duration(text: str) -> float:
    from flatout.errors import UsageError

    match = _DURATION.fullmatch(text.strip())
    if match is None or not 1 <= float(match[1]) * _SECONDS[match[2]] <= 30 * 86400:
        raise UsageError(f"`--budget` is a time such as 90s, 10m or 2h, at most 30 days, but got {text}")
    return float(match[1]) * _SECONDS[match[2]]
