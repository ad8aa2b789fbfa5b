"""`flatout profile`: run a command and record it; the diagnosis follows on standard error."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.fail_on import exit_if_met, fail_on_option, finding_conditions
from flatout.cli.output import typed_command
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.conditions.words import Condition
    from flatout.launch import ExitStatus
    from flatout.records.diagnosis import Diagnosis
    from flatout.records.recording import Recording


def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Training command, after `--`.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the recording. [default: flatout-out/TIME]")
    ] = None,
    steps: Annotated[int, whole_number(least=1, help="Number of steps to trace.")] = 3,
    warmup: Annotated[
        int | None, whole_number(help="Warm-up steps before tracing. [default: until step times are stable]")
    ] = None,
    light: Annotated[
        bool,
        typer.Option("--light", help="Record step times, data loading, memory and the machine's state, but no trace."),
    ] = False,
    fail_on: Annotated[list[str] | None, fail_on_option("profile")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON after the job's output.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recording.")] = False,
) -> None:
    """Run a training command, unchanged, and record what slows it down.

    Exits with the command's own code; if that is 0 and a condition of --fail-on holds, with 1.

    Example: flatout profile -- torchrun --standalone --nproc-per-node 2 train.py --epochs 1
    """
    from flatout.inside.protocol import Variable
    from flatout.launch import end_like
    from flatout.launch.abandoned import abandoned_jobs
    from flatout.profile import Options, record
    from flatout.profile.folder import default_path
    from flatout.run.several_nodes import key_of_nodes
    from flatout.secrets import masked_command

    conditions = finding_conditions("profile", fail_on or ())
    diagnosis: Diagnosis | None = None
    for abandoned in abandoned_jobs():
        print(f"flatout: {abandoned.describe()}", file=sys.stderr)
    recorded = record(
        command,
        out or default_path(),
        Options(
            num_steps=steps,
            warmup=warmup,
            is_light=light,
            force=force,
            job_key=key_of_nodes(command, os.environ),
            variables={Variable.LOADER_STAGES: "1"},
        ),
        shown_command=masked_command(command),
        sampler=[sys.executable, "-m", "flatout.probe.sampler"],
    )
    try:
        if recorded.is_first:
            diagnosis = _report(recorded.path, recorded.ended, light=light, json=json)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the job's own exit code counts
        problem = f"reading it failed: {error}"
        if isinstance(error, OSError) and error.filename is None:
            problem = f"standard output failed: {error.strerror or error}"
        print(f"flatout: the recording is in {recorded.path}, but {problem}", file=sys.stderr)
    sys.stdout.flush()
    if conditions and recorded.ended.code == 0 and recorded.is_first:
        exit_if_met(_met(diagnosis, conditions))
    raise typer.Exit(end_like(recorded.ended))


def _met(diagnosis: Diagnosis | None, conditions: Sequence[Condition]) -> list[str]:
    """Return which conditions are met; without a diagnosis all are, because nothing was checked."""
    from flatout.conditions.met import met_by_diagnosis

    if diagnosis is None:
        return ["there is no diagnosis of the recording"]
    return met_by_diagnosis(diagnosis, conditions)


def _report(path: Path, ended: ExitStatus, *, light: bool, json: bool) -> Diagnosis | None:
    """Print what was recorded, and return its diagnosis; None without one."""
    from flatout.diagnosis_pipeline import recorded_time_of, with_known_ceilings
    from flatout.profile import read_recording
    from flatout.report.recorded_text import recorded_lines
    from flatout.report.recording_text import recording_lines
    from flatout.report.terminal import TextStyle

    recording = with_known_ceilings(read_recording(path))
    folder = _relative(path)
    for line in recording_lines(recording, folder):
        print(f"flatout: {line}", file=sys.stderr)
    has_trace = bool(recording.traced_ranks)
    was_killed = ended.signal is not None
    diagnosis = None
    if has_trace and not was_killed:
        diagnosis = _diagnose(path, recording, json=json)
    elif json:
        _print_recording(recording)
    elif (recorded := recorded_time_of(recording)) is not None:
        print("\n".join(recorded_lines(recorded, TextStyle())), file=sys.stderr)
    if has_trace:
        page = "" if was_killed else " --html report.html"
        print(f"next: flatout diagnose {shlex.quote(folder)}{page}", file=sys.stderr)
    elif light and recording.ranks:
        print("next: run the same command without --light to get a trace and its diagnosis", file=sys.stderr)
    return diagnosis


def _diagnose(path: Path, recording: Recording, *, json: bool) -> Diagnosis:
    """Print the diagnosis: JSON to standard output, text to standard error, separate from the job's output."""
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.report.progress import ProgressLine

    try:
        with ProgressLine("reading traces") as progress:
            done = diagnose_paths([path], progress=progress.show)
    except Exception as error:
        if json:
            _print_recording(recording, problem=f"its traces could not be diagnosed: {error}")
        raise
    if json:
        from flatout.report.json import diagnosis_json

        print(diagnosis_json(done.diagnosis, typed_command(), pretty=False).decode())
    else:
        from flatout.report.text import diagnosis_text

        print(diagnosis_text(done.diagnosis), file=sys.stderr)
    return done.diagnosis


def _print_recording(recording: Recording, *, problem: str | None = None) -> None:
    """Print the recording without a diagnosis, as one line of JSON."""
    import msgspec

    from flatout.diagnosis_pipeline import recorded_time_of
    from flatout.records.events import Quality
    from flatout.report.recording_json import recording_json

    if problem is not None:
        quality = Quality(problem=problem, effect="there is no diagnosis")
        recording = msgspec.structs.replace(recording, problems=(*recording.problems, quality))
    recorded = recorded_time_of(recording)
    print(recording_json(recording, typed_command(), recorded=recorded, pretty=False).decode())


def _relative(path: Path) -> str:
    """Return the path relative to the working folder if it is inside that folder, else unchanged."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
