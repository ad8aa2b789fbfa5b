"""Keep the compiled bytecode of a job's modules between trials, where the job itself does not keep it.

In: what each trial's recorder says about torch's bytecode. Out: variables for the next trials. Python writes bytecode
next to a module's source and reads it at the next start; without it, `import torch` alone compiles two thousand
modules. It is lost if the environment says so (`PYTHONDONTWRITEBYTECODE`, as in many containers), if the folder cannot
be written, or if a virtual environment within the working folder is overlaid. Then the next trials keep all bytecode in
a folder of the tuning: the first of them compiles it, and the others read it. Nothing is written next to the sources,
and what the modules do is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.records.recording import RankRecording

FOLDER = "bytecode"
_PREFIX, _NOT_WRITTEN = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"


class Bytecode:
    """The bytecode of one tuning's trials; `variables` are those of the next trial."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.variables: dict[str, str] = {}
        self._folder = folder
        self._is_users = bool(environment.get(_PREFIX))  # the user keeps it in another folder

    def learn(self, ranks: Sequence[RankRecording], began_s: float, overlaid: Sequence[str]) -> bool:
        """Take a run that began at `began_s`, in Unix seconds; return whether bytecode is kept from now on.

        `overlaid` are the folders whose new files do not outlive the run.
        """
        if self.variables or self._is_users:
            return False
        if not any(_is_lost(rank, began_s, overlaid) for rank in ranks):
            return False
        self.variables = {_PREFIX: str(self._folder), _NOT_WRITTEN: ""}
        return True


def _is_lost(rank: RankRecording, began_s: float, overlaid: Sequence[str]) -> bool:
    """Whether the process compiled torch, and the next one would compile it again."""
    times = rank.started
    if times is None or times.bytecode is None:
        return False
    if times.bytecode_s is None:  # it is not there, although torch was imported
        return True
    is_overlaid = any(times.bytecode.startswith(folder.rstrip("/") + "/") for folder in overlaid)
    return is_overlaid and times.bytecode_s >= began_s
