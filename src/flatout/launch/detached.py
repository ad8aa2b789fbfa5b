"""Start a server detached from this terminal, with its output in a file, and end it with all its descendants.

In: a command, its environment, a file for its output. Out: a `Detached` process. It leads a separate session, so that
Ctrl-C reaches only Flatout, which then ends it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from flatout.input_files import read_end
from flatout.launch.limited import ProcessTree
from flatout.launch.local import cannot_start
from flatout.secrets import open_private

_END_BYTES = 4096


class Detached:
    """A process that runs until it is ended."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self.output = output
        self._tree = ProcessTree(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        self._tree.look()
        return self._process.poll()

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the process and its descendants that run."""
        with suppress(psutil.Error):
            first = psutil.Process(self._process.pid)
            yield first
            yield from first.children(recursive=True)

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that are not empty of what it has written."""
        text = read_end(self.output, max_bytes=_END_BYTES).decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()][-count:]

    def end(self) -> None:
        """End the process and all its descendants; return when none is left."""
        self._tree.end()
        self._process.wait()


def start_detached(
    command: Sequence[str], environment: Mapping[str, str], *, output: Path, folder: Path | None = None
) -> Detached:
    """Start `command`. Raise InputError if it cannot be started."""
    with open_private(output, "wb") as file:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise cannot_start(command, error) from error
    return Detached(process, output)
