"""Run a command on this machine as the shell would, and report how it ended.

In: the command and its environment. Out: `ExitStatus`. The child has our standard streams, open files, working folder,
terminal and process group, and the signal mask and handlers that this process was started with. A signal to this
process alone is forwarded; a signal that the child received too (Ctrl-C in a terminal, a kill of the group) is not (see
`witness`).
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import msgspec

from flatout.errors import InputError
from flatout.launch.next_signal import next_signal
from flatout.launch.witness import GroupSignalProbe

# Signals that users and schedulers send to a job. Those of a terminal's stop and resume keys act on the whole group.
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_UNWATCHED_POLL_S = 1.0


class PassSignal(Protocol):
    """Delivers a signal to the job other than through its first process; returns whether it did."""

    def __call__(self, number: int, *, group_has_it: bool) -> bool: ...


Cause = Literal["void", "out_of_memory", "timed_out"]  # void: the end says nothing about the job


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the job's first process ended: with an exit code or by a signal."""

    code: int | None
    signal: int | None
    start_unix_s: float
    end_unix_s: float
    is_timed_out: bool = False  # it ran past its limit, and was ended
    cause: Cause | None = None  # from a scheduler, which knows more than the exit code shows
    reason: str = ""  # the cause in words
    job: str | None = None  # the scheduler's ID of the job
    nodes: str | None = None  # the nodes on which the scheduler ran it

    @property
    def shell_code(self) -> int:
        """Return the exit code that a shell would report."""
        if self.code is not None:
            return self.code
        assert self.signal is not None
        return 128 + self.signal


def run_local(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    watch: Callable[[int], object] | None = None,
    poll_s: float = 0.05,
    on_signal: Callable[[int], object] | None = None,
    pass_on: Mapping[int, PassSignal] | None = None,
) -> ExitStatus:
    """Run `command` until it ends. Raise InputError if it cannot be started.

    `watch` is called every `poll_s` with the PID of the job's first process, and `on_signal` with each signal that the
    user or a scheduler sends. `pass_on` maps a signal to the function that delivers it; if that fails, the first
    process gets the signal.
    """
    deliver = pass_on or {}
    with _blocked() as mask, GroupSignalProbe(FORWARDED) as probe:
        start_unix_s = time.time()
        # signals sent before the job existed: they reached the group, but not the job
        before = set(signal.sigpending())
        process = _start(command, environment, mask)
        while process.poll() is None:
            received = _wait(_UNWATCHED_POLL_S if watch is None else poll_s)
            if received is None:
                if watch is not None:
                    watch(process.pid)
                continue
            if received.si_signo == signal.SIGCHLD:
                continue
            if on_signal is not None:
                on_signal(received.si_signo)
            group_has_it = probe.has_seen(received.si_signo) and received.si_signo not in before
            passes = deliver.get(received.si_signo)
            is_delivered = passes is not None and passes(received.si_signo, group_has_it=group_has_it)
            if not is_delivered and not group_has_it:
                process.send_signal(received.si_signo)
            before.discard(received.si_signo)
        code = process.returncode
        return ExitStatus(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            start_unix_s=start_unix_s,
            end_unix_s=time.time(),
        )


def pause(limit_s: float) -> ExitStatus | None:
    """Wait between two jobs. Return None when the time is over, or how to end if a signal asks for it."""
    start_unix_s, over_s = time.time(), time.monotonic() + limit_s
    asks = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    with _blocked():
        while (left_s := over_s - time.monotonic()) > 0:
            received = next_signal(asks, left_s)
            if received is not None:
                return ExitStatus(
                    code=None, signal=received.si_signo, start_unix_s=start_unix_s, end_unix_s=time.time()
                )
    return None


def _wait(limit_s: float) -> signal.struct_siginfo | None:
    return next_signal({signal.SIGCHLD, *FORWARDED}, limit_s)


def end_like(ended: ExitStatus) -> int:
    """End this process by the signal that ended the job; if no signal did, return the job's exit code."""
    if ended.signal is None:
        return ended.shell_code
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if ended.signal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(ended.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ended.signal})
    os.kill(os.getpid(), ended.signal)
    return ended.shell_code


def _start(command: Sequence[str], environment: Mapping[str, str], mask: set[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=environment,
            close_fds=False,  # a scheduler can pass open files to the job
            preexec_fn=lambda: _let_through(mask),
        )
    except OSError as error:
        raise cannot_start(command, error) from error


def _let_through(mask: set[int]) -> None:
    """Let signals that arrive between the fork and the start of the job's program end the child.

    Python's own handlers would only record them, and the record is lost when the next program starts.
    """
    for number in FORWARDED:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)  # as `exec` does
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def cannot_start(command: Sequence[str], error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(
            f"the command `{command[0]}` was not found", hint="check its name, and that its environment is active"
        )
    return InputError(
        f"the command `{command[0]}` cannot be started: {(error.strerror or str(error)).lower()}",
        hint="start a script with its interpreter: python train.py",
    )


@contextmanager
def _blocked() -> Iterator[set[int]]:
    """Block signals so that they can be waited for; yield the previous mask.

    A mask is that of one thread. The kernel gives a signal to any thread that does not block it, where its default
    action would end this process and leave the job alone, so there it is handed to this thread.
    """
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *FORWARDED})}
    handlers = _hand_over() if threading.current_thread() is threading.main_thread() else {}
    try:
        yield before
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hand_over() -> dict[signal.Signals, Any]:
    """Hand forwarded signals that other threads receive to the main thread; return the previous handlers."""
    previous = {number: signal.getsignal(number) for number in FORWARDED}
    # The job ignores what we ignore, as under `nohup`. None: set by other code than Python's.
    replaced = {number: handler for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)}
    for number in replaced:
        signal.signal(number, lambda received, _: signal.raise_signal(received))  # runs in the main thread
    return replaced
