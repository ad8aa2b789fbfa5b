"""Find jobs that run on after the `flatout profile` or `flatout run` that started them was killed.

A Flatout process that gets SIGKILL cannot end its job, and a job that has run for days should not end because of it. So
each command that starts a job leaves a note in its state folder, which the job's processes name in their environment:
as long as one of them lives, the note is found. In: this user's processes on this machine. Out: the jobs that were
started in the working folder. Nothing is ended. Trials of a tuning are not included, because its guard ends them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flatout.inside.protocol import File, Variable
from flatout.launch.process_identity import ProcessIdentity, own_identity, start_ticks, state_of
from flatout.secrets import write_private

_BEFORE, _AFTER = "starter-", ".json"


class Starter(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a Flatout command that starts a job."""

    process: ProcessIdentity
    program: str  # such as `flatout profile`
    command: str  # of the job, with its secrets masked
    folder: str  # where the command was given


class AbandonedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose starter is no more."""

    starter: Starter
    notes: Path  # the folder of the starter's note
    pid: int  # the first of its processes

    def describe(self) -> str:
        command = self.starter.command.replace("\n", "\\n")  # a script after `-c` has lines
        return (
            f"a job whose `{self.starter.program}` was killed is still running, unmonitored: process {self.pid}, "
            f"{command} (`kill {self.pid}` ends it)"
        )


def note_starter(folder: Path, program: str, command: str) -> None:
    """Leave the note of this process in `folder`, its state folder, which its job names in its environment."""
    starter = Starter(process=own_identity(), program=program, command=command, folder=_working_folder())
    # names may not be valid UTF-8, which msgspec refuses to write
    text = json.dumps(msgspec.to_builtins(starter))
    write_private(_own_note(folder), text.encode())


def remove_note(folder: Path) -> None:
    """Remove the note of this process, whose job was not started."""
    _own_note(folder).unlink(missing_ok=True)


def has_lost_its_starter(folder: Path) -> bool:
    """Whether the Flatout process that left its note in `folder` was killed; False without a note."""
    starters = _starters_in(folder)
    return bool(starters) and not any(starter.process.may_be_alive for starter in starters)


def abandoned_jobs() -> list[AbandonedJob]:
    """Return the jobs that were started in the working folder and that no Flatout process monitors any more."""
    folder = _working_folder()
    pids_of_notes: dict[Path, list[int]] = {}
    for pid, environment in _environments():
        if Variable.TUNING in environment:
            continue
        for notes in _note_folders(environment):
            pids_of_notes.setdefault(notes, []).append(pid)
    return [
        AbandonedJob(starter=starter, notes=notes, pid=_first(pids))
        for notes, pids in pids_of_notes.items()
        if (starter := _abandoning_starter(notes, folder)) is not None
    ]


def _working_folder() -> str:
    """Return the working folder without links; empty if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _own_note(folder: Path) -> Path:
    return folder / f"{_BEFORE}{os.uname().nodename}-{os.getpid()}{_AFTER}"


def _note_folders(environment: dict[str, str]) -> Iterator[Path]:
    if recording := environment.get(Variable.RECORDING):
        yield Path(recording, File.STATE)
    if state := environment.get(Variable.SAVES):
        yield Path(state)


def _abandoning_starter(notes: Path, folder: str) -> Starter | None:
    """Return the starter that left its job in `folder`; None if a starter may be alive, or there is no note."""
    if not has_lost_its_starter(notes):
        return None
    starters = _starters_in(notes)
    return next((starter for starter in starters if starter.folder == folder), None)


def _starters_in(folder: Path) -> list[Starter]:
    return [starter for path in folder.glob(f"{_BEFORE}*{_AFTER}") if (starter := _read(path)) is not None]


def _read(path: Path) -> Starter | None:
    try:
        return msgspec.convert(json.loads(path.read_text()), Starter)
    except (OSError, ValueError):
        return None


def _first(pids: list[int]) -> int:
    """Return the process that was started first, which the others are started by."""
    return min(pids, key=lambda pid: (start_ticks(pid), pid))


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the processes of this user that Flatout's variables were given to, with those variables, except this one.

    Only the bytes of `/proc` are read, as this precedes each job: a thousand processes take some ten milliseconds.
    """
    wanted = {name.encode() for name in (Variable.RECORDING, Variable.SAVES, Variable.TUNING)}
    user, own_pid = os.getuid(), os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == own_pid:
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != user:
                continue
            data = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # it has ended
            continue
        if b"FLATOUT_" not in data or state_of(int(name)) in ("Z", "X", ""):
            continue
        pairs = (item.partition(b"=") for item in data.split(b"\0"))
        yield int(name), {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs if key in wanted}
