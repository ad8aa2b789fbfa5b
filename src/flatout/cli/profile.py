"""`flatout profile`: run a command and record it; the diagnosis follows on standard error."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flatout.launch import Ended
    from flatout.records.recording import Recording


def profile(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder to record to.  [default: flatout-out/TIME]")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="How many steps to trace.")] = 3,
    warmup: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Steps before that; without it, until step times have settled."),
    ] = None,
    light: Annotated[
        bool, typer.Option("--light", help="No trace: step times, loader, memory and machine only.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON, after the job's output.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a recording that exists.")] = False,
) -> None:
    """Run a training command, unchanged, and record what slows it down. Ends with the command's own exit code.

    Example: flatout profile -- torchrun --standalone --nproc-per-node 2 train.py --epochs 1
    """
    from flatout.launch import end_like
    from flatout.profile import Options, record
    from flatout.profile.folder import default_path
    from flatout.report.command import masked_command

    recorded = record(
        command,
        out or default_path(),
        Options(num_steps=steps, warmup=warmup, is_light=light, force=force),
        shown_command=masked_command(command),
        sampler=[sys.executable, "-m", "flatout.probe.sampler"],
    )
    try:
        if recorded.is_first:
            _tell(recorded.path, recorded.ended, light=light, json=json)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the job's own code is what counts
        what = f"reading it failed: {error}"
        if isinstance(error, OSError) and error.filename is None:
            what = f"standard output failed: {error.strerror or error}"
        print(f"flatout: the recording is in {recorded.path}, but {what}", file=sys.stderr)
    sys.stdout.flush()
    raise typer.Exit(end_like(recorded.ended))


def _tell(path: Path, ended: Ended, *, light: bool, json: bool) -> None:
    from flatout.diagnosis_pipeline import with_known_ceilings
    from flatout.profile import read_recording

    recording = with_known_ceilings(read_recording(path))
    shown = _shown(path)
    for line in _words(recording, shown):
        print(f"flatout: {line}", file=sys.stderr)
    has_trace = bool(recording.traced_ranks)
    if has_trace and ended.signal is None:
        _diagnose(path, recording, json=json)
    elif json:
        _print_recording(recording)
    next_command = f"flatout diagnose {shlex.quote(shown)}" + (" --html report.html" if ended.signal is None else "")
    if has_trace:
        print(f"next: {next_command}", file=sys.stderr)
    elif light and recording.ranks:
        print("next: the same without --light, for a trace and its diagnosis", file=sys.stderr)


def _diagnose(path: Path, recording: Recording, *, json: bool) -> None:
    """The diagnosis of the recording: JSON to standard output, text to standard error, where the job's words went."""
    from flatout.cli.progress import Progress
    from flatout.diagnosis_pipeline import diagnose_paths

    try:
        with Progress("reading traces") as progress:
            done = diagnose_paths([path], progress=progress.show)
    except Exception as error:
        if json:
            _print_recording(recording, but=f"its traces could not be diagnosed: {error}")
        raise
    if json:
        from flatout.report.json import diagnosis_json

        print(diagnosis_json(done.diagnosis, ["flatout", *sys.argv[1:]], pretty=False).decode())
    else:
        from flatout.report.text import diagnosis_text

        print(diagnosis_text(done.diagnosis), file=sys.stderr)


def _print_recording(recording: Recording, *, but: str | None = None) -> None:
    """What there is without a diagnosis, as one line of JSON."""
    import msgspec

    from flatout.records.events import Quality
    from flatout.report.recording_json import recording_json

    if but is not None:
        problem = Quality(problem=but, effect="there is no diagnosis")
        recording = msgspec.structs.replace(recording, problems=(*recording.problems, problem))
    print(recording_json(recording, ["flatout", *sys.argv[1:]], pretty=False).decode())


def _words(recording: Recording, shown: str) -> list[str]:
    """What was recorded, and what was not, in a few lines."""
    from flatout.report.phrases import MFU_AGAINST
    from flatout.units import num_bytes, percent, seconds

    num_steps = max((len(rank.steps.number) for rank in recording.ranks), default=0)
    num_ranks = len(recording.ranks)
    count = f"{num_ranks} rank{'s' * (num_ranks != 1)}, {num_steps} step{'s' * (num_steps != 1)}"
    lines = [f"recorded {count}, to {shown}"]
    measured = recording.measured
    facts = []
    if measured.step_s is not None:
        facts.append(f"{seconds(measured.step_s)} a step untraced")
    if measured.samples_per_s is not None:
        facts.append(f"{measured.samples_per_s:,.0f} samples/s")
    if measured.tokens_per_s is not None:
        facts.append(f"{measured.tokens_per_s:,.0f} tokens/s")
    if measured.mfu is not None:
        facts.append(f"MFU {percent(measured.mfu)}{MFU_AGAINST.get(measured.mfu_against or '', '')}")
    if measured.peak_memory_bytes is not None:
        facts.append(f"peak memory {num_bytes(measured.peak_memory_bytes)}")
    if facts:
        lines.append(", ".join(facts))
    for quality in recording.problems:
        where = "" if quality.rank is None else f"rank {quality.rank}: "
        lines.append(where + quality.problem + (f" ({quality.effect})" if quality.effect else ""))
    return lines


def _shown(path: Path) -> str:
    """Relative to the working folder where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
