"""Signals during a tuning: each ends the job that runs. Ctrl-C also ends the tuning, with what was found so far."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class EndedBySignal(BaseException):
    """A signal, e.g. from a scheduler, asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Ctrl-C during a tuning: it ends the trial that runs, or else the next one as it starts.

    So it never strikes between two trials, where it would lose what is known. A second Ctrl-C acts at once.
    """

    def __init__(self) -> None:
        self._is_running = False  # a trial or a profile
        self._is_pending = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT inside the `with` block, unless it is ignored."""
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise KeyboardInterrupt on SIGINT inside the `with` block, or if one came before it."""
        self._is_running = True
        try:
            if self._is_pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_running = False

    def _interrupt(self, number: int, _: object) -> None:
        if self._is_running or self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise EndedBySignal on SIGTERM and SIGHUP inside the `with` block, unless they are ignored (`nohup`)."""

    def end(number: int, _: object) -> None:
        raise EndedBySignal(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    replaced = [number for number, handler in handlers.items() if handler is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
