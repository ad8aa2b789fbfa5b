"""`flatout diagnose`: traces of one job -> findings, and reports of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.fail_on import exit_if_met, fail_on_option, finding_conditions
from flatout.cli.output import text_style, typed_command
from flatout.cli.paths import path_argument, path_option

if TYPE_CHECKING:
    from flatout.api.results import DiagnosisResult
    from flatout.records.diagnosis import Diagnosis


_MAX_RANK = 1 << 20
_MAX_STEP_S = 10 * 86_400.0


def diagnose(
    paths: Annotated[
        list[Path],
        path_argument(metavar="PATH...", help="Traces of one job: files, a folder, or an archive."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a self-contained HTML report.")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Write the traces with Flatout's tracks added, for ui.perfetto.dev (.json[.gz]).",
        ),
    ] = None,
    rank: Annotated[
        list[str] | None, typer.Option(metavar="FILE=N", help="Treat FILE as the trace of rank N. Repeatable.")
    ] = None,
    untraced_step: Annotated[
        Duration | None, duration(most_s=_MAX_STEP_S, help="Step time without the profiler, if known.")
    ] = None,
    fail_on: Annotated[list[str] | None, fail_on_option("diagnose")] = None,
    ceilings: Annotated[
        Path | None,
        path_option(
            help="Ceilings from `flatout bench` to compare with. [default: those saved on this machine for the job's "
            "hosts]"
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help="How to read the traces: auto, serial, processes (in parallel), or ray (on a cluster).",
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Find what slows down a training job, from its profiler traces.

    Example: flatout diagnose traces/ --html report.html
    """
    from flatout.api import diagnose as diagnose_job
    from flatout.conditions.met import met_by_diagnosis
    from flatout.report.progress import ProgressLine

    _check_targets(html, perfetto, force=force)
    conditions = finding_conditions("diagnose", fail_on or ())
    remarks: list[str] = []
    with ProgressLine("reading traces") as progress:
        result = diagnose_job(
            paths,
            ranks=_parse_ranks(rank or []),
            untraced_step_s=untraced_step.seconds if untraced_step is not None else None,
            ceilings=ceilings,
            perfetto=perfetto,
            engine=engine,
            force=force,
            progress=progress.show,
            note=remarks.append,
        )
    if html is not None:
        _write_html(html, result, force)
        remarks.insert(0, f"wrote the report: {html}")
    _print(result, html, json=json)
    for line in remarks:
        print(line, file=sys.stderr)
    exit_if_met(met_by_diagnosis(result, conditions))


def _print(result: DiagnosisResult, html: Path | None, *, json: bool) -> None:
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
        return
    from flatout.report.text import diagnosis_text

    print(diagnosis_text(result, style=text_style(), next_command=_next_command(html, result)))


def _parse_ranks(pairs: Sequence[str]) -> dict[str, int]:
    """Parse `FILE=N` pairs into file -> rank."""
    from flatout.errors import UsageError

    ranks = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(_MAX_RANK))
        if not name or not is_number or int(number) >= _MAX_RANK:
            raise UsageError(f"`--rank` must be FILE=N with a whole number N below {_MAX_RANK:,}, but got {pair}")
        ranks[name.encode("utf-8", "backslashreplace").decode()] = int(number)
    return ranks


def _check_targets(html: Path | None, perfetto: Path | None, *, force: bool) -> None:
    """Raise UsageError or OutputError for files that could not be written after the diagnosis."""
    from os.path import realpath

    from flatout.errors import UsageError
    from flatout.report.files import check_new

    if html is not None and perfetto is not None and realpath(html) == realpath(perfetto):
        raise UsageError(f"`--html` and `--perfetto` must be different files, but both are {html}")
    for target in (html, perfetto):
        if target is not None:
            check_new(target, force=force)


def _write_html(target: Path, result: DiagnosisResult, force: bool) -> None:
    from flatout.report.files import write_new

    write_new(target, result.to_html(typed_command()), force=force)


def _next_command(html: Path | None, diagnosis: Diagnosis) -> str:
    from flatout.cli.next_command import repeated

    if html is not None and diagnosis.findings:
        return f"flatout explain {diagnosis.findings[0].name}"
    more = ["--html", "report.html"] if html is None else ["--perfetto", "trace.json.gz"]
    return shlex.join([*repeated(sys.argv[1:], without=("--html", "--perfetto")), *more])
