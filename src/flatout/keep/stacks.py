"""Ask a job's processes for the stacks of their threads, and read them: `HeartbeatSample` -> `Stack`.

The signal is SIGRTMIN + 8 (see `inside/liveness/stacks.py`). It is sent only to processes that have reported a handler
for it: without a handler it would end them. Processes that `flatout run` did not start are never asked.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from flatout.input_files import read_bytes
from flatout.inside.protocol import STACKS_SIGNAL_OFFSET, File, process_name
from flatout.keep.heartbeats import HeartbeatSample

NUMBER = signal.SIGRTMIN + STACKS_SIGNAL_OFFSET
_PATIENCE_S, _POLL_S = 1.0, 0.02
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'\s+File "(.*)", line (\d+|\?\?\?) in (.*)')
_INSTALLED = re.compile(r"site-packages|dist-packages|/lib/python3\.\d+/|<frozen|<string>|/flatout/inside/")


class Frame(msgspec.Struct, frozen=True):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"

    @property
    def is_users(self) -> bool:
        return not _INSTALLED.search(self.file)


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """The stack of the main thread, innermost frame first. `text` has all threads, as `faulthandler` writes them."""

    pid: int
    frames: tuple[Frame, ...]
    text: str

    def user_frame(self) -> Frame | None:
        """Return the innermost frame of the user's own code."""
        return next((frame for frame in self.frames if frame.is_users), None)

    def depth(self) -> int:
        """Return the number of calls between the user's own code and the innermost frame."""
        return next((depth for depth, frame in enumerate(self.frames) if frame.is_users), len(self.frames))


def ask_stacks(folder: Path, pulses: Sequence[HeartbeatSample]) -> dict[str, Stack]:
    """Return the stacks by process name; a process that does not answer within a second is missing."""
    asked: dict[str, tuple[HeartbeatSample, int]] = {}
    for pulse in pulses:
        if pulse.gives_stacks and pulse.is_alive and pulse.is_local and has_handler(pulse.pid):
            size = _size(_file(folder, pulse.name))
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pulse.pid, NUMBER)
                asked[pulse.name] = (pulse, size)
    deadline = time.monotonic() + _PATIENCE_S
    found: dict[str, Stack] = {}
    sizes: dict[str, int] = {}
    while len(found) < len(asked) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for name, (pulse, begin) in asked.items():
            size = _size(_file(folder, name))
            # it has stopped growing, so it is complete
            if name not in found and size > begin and sizes.get(name) == size:
                text = read_bytes(_file(folder, name))[begin:size].decode(errors="replace")
                found[name] = parse(pulse.pid, text, main_thread=pulse.main_thread)
            sizes[name] = size
    return found


def loader_stacks(folder: Path, pulse: HeartbeatSample) -> list[Stack]:
    """Return the stacks of a rank's forked workers: a rank that waits for its loader waits for one of these."""
    asked = []
    with suppress(psutil.Error):
        for child in psutil.Process(pulse.pid).children(recursive=True):
            file = _file(folder, process_name(pulse.hostname, child.pid))
            if file.exists() and has_handler(child.pid):
                begin = _size(file)
                with suppress(psutil.Error):
                    child.send_signal(NUMBER)
                    asked.append((child.pid, file, begin))
    if asked:
        time.sleep(0.2)
    return [
        parse(pid, read_bytes(file)[begin:].decode(errors="replace"), main_thread=0)
        for pid, file, begin in asked
        if _size(file) > begin
    ]


def has_handler(pid: int) -> bool:
    """Whether the process would survive the signal. A process that has since run another program would not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M)
    return caught is not None and bool(int(caught[1], 16) >> (NUMBER - 1) & 1)


_MAX_DIGITS = 9  # of the number of a line


def parse(pid: int, text: str, *, main_thread: int) -> Stack:
    """Parse the output of `faulthandler`. If no thread has the main thread's ID, use the last, which is the oldest."""
    threads: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            frames = threads.setdefault(int(thread[1], 16), [])
        elif (frame := _FRAME.match(line)) is not None:
            frames.append(Frame(frame[1], _line_number(frame[2]), frame[3]))
    last = next(reversed(threads.values()), [])
    return Stack(pid=pid, frames=tuple(threads.get(main_thread, last)), text=text)


def _line_number(text: str) -> int:
    """Return the number of a line; 0 if it is unknown (`???`), or too long for one."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def _file(folder: Path, name: str) -> Path:
    return folder / File.STACKS.of(name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
