"""SIGTERM and SIGHUP as exceptions, so that a signal that ends a tuning run also ends its job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class EndedBySignal(BaseException):
    """A signal, e.g. from a scheduler, asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
