"""Keep the trials of a server's tuning as they end, so that the same command resumes an interrupted tuning.

In: the folder of a tuning and what identifies it. Out: the plan and the trials that it had. The first line of
`trials.jsonl` has the plan (rates, words per token) and the first trial; each further line is a trial. A line that was
truncated when the process died is ignored.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import InputError, OutputError
from flatout.input_files import open_file
from flatout.records.serving import ServerTrial
from flatout.secrets import open_private

NAME = "trials.jsonl"


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """What the first start found, and of which tuning."""

    identity: str
    tool_version: str
    rates_per_s: tuple[float, ...]
    words_per_token: float
    notes: tuple[str, ...]
    first: ServerTrial


class _Kept(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    trial: ServerTrial


class RecordedTuning(msgspec.Struct, frozen=True, kw_only=True):
    """A tuning that began earlier."""

    begun: Begun
    trials: tuple[ServerTrial, ...]  # after the first one


def identity_of(*parts: object) -> str:
    """Return a digest of all that a tuning must have in common with the one that it resumes."""
    return hashlib.sha256(msgspec.json.encode([__version__, *parts], order="sorted")).hexdigest()


class ServingJournal:
    """The journal in a tuning's folder."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._path, self.identity = folder / NAME, identity

    def read(self) -> RecordedTuning | None:
        """Return the tuning that the journal has; None if there is none, or it is another one."""
        try:
            lines = self._lines()
        except (OSError, InputError, msgspec.DecodeError):
            return None
        if not lines or not isinstance(lines[0], Begun) or lines[0].identity != self.identity:
            return None
        trials = tuple(line.trial for line in lines[1:] if isinstance(line, _Kept))
        return RecordedTuning(begun=lines[0], trials=trials)

    def begin(self, begun: Begun) -> None:
        """Replace the journal by one that begins with what the first start found."""
        self._write(begun, mode="wb")

    def keep(self, trial: ServerTrial) -> None:
        self._write(_Kept(trial=trial), mode="ab")

    def _lines(self) -> list[Begun | _Kept]:
        found: list[Begun | _Kept] = []
        with open_file(self._path) as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break  # the process died while it wrote
                found.append(msgspec.json.decode(raw, type=Begun | _Kept))
        return found

    def _write(self, line: Begun | _Kept, *, mode: str) -> None:
        try:
            with open_private(self._path, mode) as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"{self._path} cannot be written to: {reason}", hint="pass another --out") from error
