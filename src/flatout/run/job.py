"""Start the prepared command of a `RunRequest`, kept alive or plainly, and return how it ended."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from flatout.change.launchers import launched_program
from flatout.inside.protocol import Variable
from flatout.keep.job_identity import script_of
from flatout.keep.other_runs import about_this, write_about
from flatout.launch import ExitStatus, run_local
from flatout.launch.abandoned import abandoned_jobs, note_starter
from flatout.report.command import command_line
from flatout.run.command import PreparedCommand
from flatout.run.data_cache import cache_note, cache_setting
from flatout.run.messages import say
from flatout.run.packed import packed_setting
from flatout.run.request import RunRequest
from flatout.run.saves import read_saves, report_file, report_saves
from flatout.secrets import Masker
from flatout.trial.patches import unapplied

_LAST_SAVE_MISSING = 1  # the exit code of a job that ends well without its last checkpoint


def run(request: RunRequest, prepared: PreparedCommand) -> ExitStatus:
    """Run the command to its end, over all its restarts."""
    cache = cache_setting(request.data_cache) if request.data_cache is not None else None
    packed = packed_setting(request.packed) if request.packed else None
    for note in (*prepared.notes, *([cache_note(cache)] if cache is not None else [])):
        say(note)
    with TemporaryDirectory(prefix="flatout-") as folder:
        state = Path(folder)
        environment = _environment(request, prepared, state, cache=cache, packed=packed)
        note_starter(state, "flatout run", command_line(prepared.command))
        is_checked = prepared.expectation is not None and request.on_regression != "off"
        if request.is_kept or is_checked:
            from flatout.run.kept import KeptRun  # a job that is not kept alive starts without these imports

            ended = KeptRun(request, prepared, environment, state).run()
        else:
            for abandoned in abandoned_jobs():
                say(abandoned.describe())
            environment |= _heartbeats(request, prepared, state)
            ended = run_local(prepared.command, environment)
        for reason in unapplied(state, prepared.changes):
            say(f"not applied on this host: {reason}")
        is_last_missing = report_saves(read_saves(state))
        if request.checkpoint is not None:
            report_file(request.checkpoint, ended.start_unix_s)
    if is_last_missing and ended.shell_code == 0:
        return msgspec.structs.replace(ended, code=_LAST_SAVE_MISSING)
    return ended


def _environment(
    request: RunRequest, prepared: PreparedCommand, state: Path, *, cache: str | None, packed: str | None
) -> dict[str, str]:
    """Return the environment of the job: the prepared one, and what its ranks are to do besides."""
    reports = str(state) if prepared.changes.patches else None
    safe_save = "1" if request.checkpoint is not None else None
    optional = {
        Variable.REPORTS: reports,
        Variable.SAFE_SAVE: safe_save,
        Variable.SAVES: str(state),
        Variable.DATA_CACHE: cache,
        Variable.PACKED: packed,
    }
    return {**prepared.environment, **{name: value for name, value in optional.items() if value is not None}}


def _heartbeats(request: RunRequest, prepared: PreparedCommand, state: Path) -> dict[str, str]:
    """Return the variable with which `flatout watch` finds the job, whose ranks then write heartbeats.

    Nothing reads them unless somebody watches. Within another job of Flatout, the outer one reads them.
    """
    if {Variable.HEARTBEAT, Variable.RECORDING} & prepared.environment.keys():
        return {}
    checkpoints = tuple(path for path in (request.checkpoint, request.checkpoint_folder) if path is not None)
    script = Masker(prepared.environment, prepared.command).text(script_of(launched_program(prepared.command)))
    about = about_this(command_line(prepared.command), checkpoints, None, is_part=False, script=script)
    write_about(state, msgspec.structs.replace(about, expectation=prepared.expectation))
    folder = state / "attempt-0"
    folder.mkdir()
    return {Variable.HEARTBEAT: str(folder)}
