"""`flatout watch`: a live view of a running job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style
from flatout.cli.values import amount, whole_number
from flatout.errors import UsageError
from flatout.units import MOST_USD_PER_GPU_HOUR

if TYPE_CHECKING:
    from flatout.watch.view.run_status import RunStatus


def watch(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name, PID or folder of a job of `flatout run` or `flatout profile`. [default: the only one]",
            show_default=False,
        ),
    ] = None,
    attach: Annotated[
        int | None,
        whole_number(metavar="PID", least=1, help="Show a process that Flatout did not start, and its ranks."),
    ] = None,
    every: Annotated[
        Duration, duration(least_s=0.1, most_s=3600.0, help="Time between two updates of the screen.")
    ] = Duration("1s", 1.0),
    record: Annotated[
        int | None,
        whole_number(
            metavar="STEPS",
            least=1,
            most=1000,
            help="Trace this many steps of all ranks, without a restart, and diagnose them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the traces of --record. [default: flatout-out/watch-TIME]"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print a line when a slowdown begins and when it ends, until the job ends. With --record, also trace "
            "steps when one begins, at most three times and at least 10 min apart.",
        ),
    ] = False,
    gpu_price: Annotated[
        float | None,
        amount(
            "--gpu-price",
            metavar="USD",
            most=MOST_USD_PER_GPU_HOUR,
            help="Price per GPU-hour, for the cost of slowdowns. [default: the catalogue's on-demand price]",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the status once, and exit.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the status once, as JSON; with --follow, a line for each finding.")
    ] = False,
) -> None:
    """Show a running job: the steps, waits and GPU of each rank, and lost ranks.

    Without a terminal it prints the status once.

    Example: flatout watch train.py
    """
    import sys

    from flatout.report.watch_text import watch_lines
    from flatout.watch.view.live import JobScreen, open_run, open_source

    _check_options(job, attach, is_recording=record is not None, has_folder=out is not None, follow=follow, once=once)
    if follow:
        _follow(open_run(job, gpu_price), every.seconds, record, _folder(out), as_json=json)
        return
    if record is not None:
        _record(job, record, _folder(out), as_json=json)
        return
    source = open_source(job, attach, gpu_price)
    if json:
        print_json("flatout/watch", source.read())
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(watch_lines(source.read(), text_style())))
    else:
        JobScreen(source).show(every.seconds)


def _check_options(
    job: str | None, attach: int | None, *, is_recording: bool, has_folder: bool, follow: bool, once: bool
) -> None:
    """Raise UsageError if an option would be ignored."""
    other = "--follow" if follow else "--record"
    is_other = follow or is_recording
    if attach is not None and is_other:
        raise UsageError(f"`{other}` needs a job of `flatout run`, but --attach shows another process")
    if attach is not None and job is not None:
        raise UsageError(f"`flatout watch` shows one job, but {job} and --attach {attach} are two")
    if once and is_other:
        raise UsageError(f"`--once` prints the status, but `{other}` does something else", hint="pass one of them")
    if has_folder and not is_recording:
        raise UsageError("`--out` is the folder for traces, but without `--record` there are none", hint="--record 5")


def _folder(out: Path | None) -> Path:
    """Return the folder for traces."""
    import time

    return out or Path("flatout-out") / f"watch-{time.strftime('%Y%m%d-%H%M%S')}"


def _follow(source: RunStatus, interval_s: float, record: int | None, folder: Path, *, as_json: bool) -> None:
    """Print findings as they begin and end, and trace steps where asked."""
    import sys

    import msgspec

    from flatout.report.watch_text import finding_sentence, recording_sentence
    from flatout.watch.auto_record import AutoRecorder
    from flatout.watch.view.follow import follow

    recorder = AutoRecorder(source.job, record, folder) if record is not None else None
    for finding in follow(source, interval_s):
        print(msgspec.json.encode(finding).decode() if as_json else finding_sentence(finding), flush=True)
        recorded = recorder.on_news(finding) if recorder is not None else None
        if recorded is not None:
            print(recording_sentence(recorded), file=sys.stderr, flush=True)


def _record(job: str | None, num_steps: int, folder: Path, *, as_json: bool) -> None:
    """Trace steps of a running job, and print their diagnosis."""
    import sys

    from flatout.cli.output import typed_command
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.report.json import diagnosis_json
    from flatout.report.progress import ProgressLine, StatusLine
    from flatout.report.text import diagnosis_text
    from flatout.report.watch_text import record_problems, recording_progress
    from flatout.watch.jobs import choose_job
    from flatout.watch.record import record_steps

    with StatusLine() as line:
        chosen = choose_job(job)
        recorded = record_steps(chosen, num_steps, folder, show=lambda progress: line.say(recording_progress(progress)))
    for problem in record_problems(recorded.ranks, recorded.problems):
        print(problem, file=sys.stderr)
    with ProgressLine("reading traces") as reading:
        diagnosis = diagnose_paths([folder], progress=reading.show).diagnosis
    if as_json:
        sys.stdout.write(diagnosis_json(diagnosis, typed_command()).decode())
    else:
        print(
            diagnosis_text(diagnosis, style=text_style(), next_command=f"flatout diagnose {folder} --html report.html")
        )
