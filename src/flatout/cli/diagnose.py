"""`flatout diagnose`: traces of one job -> findings, and reports of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flatout.diagnosis_pipeline import Diagnosed
    from flatout.records.diagnosis import Finding


_MAX_RANK = 1 << 20
_MAX_STEP_S = 1e6


def given_path(text: str) -> Path:
    """A path to read as the user gave it; "" would be the current folder. What is wrong with it, `read` says."""
    from flatout.errors import UsageError

    if not text:
        raise UsageError("a path must not be empty", hint="give a file, a folder or an archive; . is this folder")
    return Path(text)


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", parser=given_path, help="Traces of one job: files, a folder, or an archive."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(readable=False, help="Write a self-contained HTML report.")] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="Write the traces with Flatout's tracks added, for ui.perfetto.dev (.json[.gz])."
        ),
    ] = None,
    rank: Annotated[
        list[str] | None, typer.Option(metavar="FILE=N", help="Say that FILE is the trace of rank N.")
    ] = None,
    untraced_step: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The step time without the profiler, if you know it.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="PERCENT|NAME", help="Exit with 1 on a finding of that share of the step, or name."),
    ] = None,
    ceilings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=given_path,
            help="Compare with these ceilings of flatout bench; default: those saved here of the job's hosts.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What reads the ranks: auto, serial, processes, or ray for a cluster.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Name what slows a training job down, from its profiler traces.

    Example: flatout diagnose traces/ --html report.html
    """
    from flatout.cli.progress import Progress
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.report.files import check_new

    _check_different(html, perfetto)
    for target in (html, perfetto):
        if target is not None:
            check_new(target, force=force)
    limit, given_ranks, untraced_step_s = _limit(fail_on), _given_ranks(rank or []), _seconds(untraced_step)
    left_out: dict[int, int] = {}  # by rank, events that the trace for Perfetto lacks
    with Progress("reading traces") as progress:
        done = diagnose_paths(
            paths,
            engine=engine,
            given_ranks=given_ranks,
            untraced_step_s=untraced_step_s,
            ceilings=ceilings,
            progress=progress.show,
            then=(lambda result: left_out.update(_write_perfetto(perfetto, result, force))) if perfetto else None,
        )
    if html is not None:
        _write_html(html, done, force)
    if json:
        from flatout.report.json import diagnosis_json

        sys.stdout.write(diagnosis_json(done.diagnosis, _command()).decode())
    else:
        from flatout.report.terminal import style_of
        from flatout.report.text import diagnosis_text

        print(diagnosis_text(done.diagnosis, style=style_of(sys.stdout), next_command=_next_command(html, done)))
    for target, what in ((html, "report"), (perfetto, "trace for ui.perfetto.dev")):
        if target is not None:
            print(f"wrote the {what}: {target}", file=sys.stderr)
    if ceilings is not None and (why := _why_unused(ceilings, done)):
        print(f"note: {ceilings} was not used: {why}", file=sys.stderr)
    for number, count in left_out.items():
        events = "1 event of rank" if count == 1 else f"{count:,} events of rank"
        print(f"note: {perfetto} lacks {events} {number}: no time that can be used", file=sys.stderr)
    if any(_reaches(finding, limit) for finding in done.diagnosis.findings):
        raise typer.Exit(1)


def _why_unused(path: Path, done: Diagnosed) -> str | None:
    """Ceilings that were given and are not of this job's device are left alone, which is said."""
    from flatout.probe.ceilings.saved import load_ceilings

    ceilings, device = load_ceilings(path), done.diagnosis.job.device
    if ceilings.wrong:
        return "a result was wrong when it was measured"
    if (ceilings.is_gpu and ceilings.device != device) or (not ceilings.is_gpu and device):
        return f"it is of {ceilings.device}, and the job ran on {device or 'a CPU'}"
    return None


def _command() -> list[str]:
    return ["flatout", *sys.argv[1:]]


def _given_ranks(pairs: list[str]) -> dict[str, int]:
    from flatout.errors import UsageError

    given = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(_MAX_RANK))
        if not name or not is_number or int(number) >= _MAX_RANK:
            raise UsageError(f"`--rank` must be FILE=N with a whole number N below {_MAX_RANK:,}, but got {pair}")
        given[name.encode("utf-8", "backslashreplace").decode()] = int(number)
    return given


def _check_different(html: Path | None, perfetto: Path | None) -> None:
    from os.path import realpath

    from flatout.errors import UsageError

    if html is not None and perfetto is not None and realpath(html) == realpath(perfetto):
        raise UsageError(f"`--html` and `--perfetto` must be different files, but both are {html}")


def _seconds(value: float | None) -> float | None:
    from flatout.errors import UsageError

    if value is not None and not 0 < value < _MAX_STEP_S:
        raise UsageError(f"`--untraced-step` must be above 0 and below {_MAX_STEP_S:,.0f} seconds, but got {value}")
    return value


def _limit(text: str | None) -> float | str | None:
    """A share of the step, or the name of a finding."""
    from flatout.errors import UsageError

    if text is None:
        return None
    try:
        value = float(text.rstrip("% "))
    except ValueError:
        from flatout.diagnose.rules import RULES

        known = [rule.NAME for rule in RULES]
        if text not in known:
            raise UsageError(
                f"`--fail-on` must be a percentage or the name of a finding, but got {text}",
                hint=f"names: {', '.join(known)}",
            ) from None
        return text
    if not 0 <= value <= 100:
        raise UsageError(f"`--fail-on` must be a percentage from 0 to 100, but got {text}")
    return value / 100


def _reaches(finding: Finding, limit: float | str | None) -> bool:
    if limit is None:
        return False
    return finding.name == limit if isinstance(limit, str) else finding.share_of_step >= limit


def _write_html(target: Path, done: Diagnosed, force: bool) -> None:
    from flatout.diagnose.explain import explanations
    from flatout.report.files import write_new
    from flatout.report.html import diagnosis_html

    write_new(target, diagnosis_html(done.diagnosis, _command(), explain=explanations()), force=force)


def _write_perfetto(target: Path, done: Diagnosed, force: bool) -> dict[int, int]:
    from flatout.diagnosis_pipeline import origin_ns, perfetto_ranks
    from flatout.report.perfetto import write_perfetto

    return write_perfetto(target, perfetto_ranks(done), origin_ns=origin_ns(done), force=force)


def _next_command(html: Path | None, done: Diagnosed) -> str:
    import shlex

    from flatout.cli.again import again

    if html is not None and done.diagnosis.findings:
        return f"flatout explain {done.diagnosis.findings[0].name}"
    more = ["--html", "report.html"] if html is None else ["--perfetto", "trace.json.gz"]
    return shlex.join([*again(sys.argv[1:], writes=("--html", "--perfetto")), *more])
