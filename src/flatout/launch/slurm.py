"""Run each command as a Slurm batch job: submit it, wait for it, and cancel it if it must end.

In: a command, and the options with which the user's jobs are submitted. Out: `ExitStatus`. Slurm's state of the job
distinguishes the command's own end from an external cause: a failed node or a preemption says nothing about the
command. All jobs of one launcher run on the nodes of the first job, because runs on other nodes are not comparable. The
output folder, and Flatout itself, must be on a file system that the nodes can see.

`salloc flatout tune` already uses one allocation for all commands. With one job per command, no node is occupied while
nothing runs, a preemption costs only one run, and the state of a job is that of its one command.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, InputError, UsageError
from flatout.launch.loaded import STARTUP
from flatout.launch.local import Cause, ExitStatus
from flatout.records.tuning import HEAD_NODE

_POLL_S, _SLOWEST_POLL_S = 0.3, 3.0
_TELL_AFTER_S = _GONE_AFTER_S = 10.0
_COMMAND_TIMEOUT_S = 120.0
_MAX_SILENCE_S = 600.0  # time without an answer from a controller that restarts or is busy
_CANCEL_PATIENCE_S = 90.0
_OUTPUT_NOT_OPENED = 53  # slurmstepd's signal in `ExitCode` if the output file could not be opened, so nothing ran

# States from slurm.h (job_states), and the flags that temporarily replace a state.
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_CAUSES: dict[str, tuple[Cause | None, str]] = {
    "COMPLETED": (None, ""),
    "FAILED": (None, ""),
    "CANCELLED": (None, ""),
    "TIMEOUT": ("timed_out", "Slurm ended it at the time limit of its job"),
    "OUT_OF_MEMORY": ("out_of_memory", "Slurm ended it at the memory limit of its job (host memory, see sbatch --mem)"),
    "NODE_FAIL": ("void", "a node failed"),
    "BOOT_FAIL": ("void", "a node did not start"),
    "PREEMPTED": ("void", "it was preempted by another job"),
    "REVOKED": ("void", "it was moved to another cluster"),
    "DEADLINE": ("void", "its deadline passed"),
}
_NODES_ARE_GONE = re.compile(r"UnavailableNodes|DOWN|DRAIN")


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job, as Slurm reports it."""

    state: str
    reason: str
    nodes: str | None
    exit_code: int
    signal: int
    start_unix_s: float | None
    was_preempted: bool
    was_suspended: bool

    @property
    def is_over(self) -> bool:
        return self.state in _CAUSES


def _slept(poll_s: float) -> float:
    """Sleep between two looks at a job; return how long to sleep next, which is longer."""
    time.sleep(poll_s)
    return min(poll_s * 1.2, _SLOWEST_POLL_S)


class SlurmLauncher:
    """Runs commands as jobs named `name`. Jobs left by a killed process are found by that name (see `job_name`)."""

    def __init__(self, options: Sequence[str], *, name: str, say: Callable[[str], None]) -> None:
        for option in options:
            if option.partition("=")[0] in ("--array", "--wrap") or re.match(r"-a($|\d)", option):
                raise UsageError(
                    f"`--sbatch-options` cannot contain {option}: a trial is a single job that runs the command"
                )
        for program in ("sbatch", "scontrol", "scancel"):
            if shutil.which(program) is None:
                raise InputError(
                    f"`--launcher slurm` needs {program}, which was not found",
                    hint="run Flatout where jobs are submitted, e.g. on a login node",
                )
        self.waited_s = 0.0
        self._options = tuple(options)
        self._name = name
        self._say = say
        self._nodes: str | None = None  # the nodes of the last job, which the next job must use too
        self._is_first = True

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], *, output: Path, limit_s: float
    ) -> ExitStatus:
        if self._is_first:  # end jobs that a killed tuning left in the same folder
            self._cancel_all()
            self._is_first = False
        is_over = False
        try:
            ended = self._follow(self._submit(command, environment, output), output, limit_s)
            is_over = True
        finally:
            if not is_over:  # cancel by name: an interrupted sbatch returns no ID
                self._cancel_all()
        self._nodes = ended.nodes if ended.cause != "void" else None
        return ended

    def _cancel_all(self) -> None:
        _run(["scancel", f"--user={pwd.getpwuid(os.getuid()).pw_name}", f"--name={self._name}"])

    def _submit(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> str:
        nodes = [f"--nodelist={self._nodes}"] if self._nodes else []
        fixed = ["--parsable", f"--job-name={self._name}", "--no-requeue", "--export=ALL"]
        file = f"--output={str(output).replace('%', '%%')}"
        submit = ["sbatch", *nodes, *self._options, *fixed, file, "--open-mode=truncate"]
        done = run_sbatch(submit, environment, _script(command, output.parent))
        if done.returncode and self._nodes:
            self._nodes = None
            return self._submit(command, environment, output)
        return job_number(done)

    def _follow(self, job: str, output: Path, limit_s: float) -> ExitStatus:
        submitted = time.monotonic()
        seen = self._wait_for_start(job, submitted)
        if seen.is_over:  # it ended between two looks
            now_unix_s, now = time.time(), time.monotonic()
            start_unix_s = seen.start_unix_s or now_unix_s
            self.waited_s += max(start_unix_s - (now_unix_s - now) - submitted, 0.0)
            return self._judge(job, seen, output, is_timed_out=False)
        if seen.state in _WAITING:
            _run(["scancel", job])
            self.waited_s += time.monotonic() - submitted
            return _ended(job, seen, "void", f"{self._nodes} are no longer available ({seen.reason})")
        began = time.monotonic()
        self.waited_s += began - submitted
        seen, is_timed_out = self._wait_for_end(job, began, limit_s)
        return self._judge(job, seen, output, is_timed_out=is_timed_out)

    def _wait_for_start(self, job: str, submitted: float) -> _Seen:
        """Return the job when it runs or is over, or, still waiting, when its nodes are gone."""
        is_told = False
        poll_s = _POLL_S
        while True:
            seen = self._look(job)
            if seen.is_over or seen.state not in _WAITING:
                return seen
            waited_s = time.monotonic() - submitted
            if waited_s > _GONE_AFTER_S and self._is_without_nodes(seen):
                return seen
            if waited_s > _TELL_AFTER_S and not is_told:
                self._say(f"job {job} waits in Slurm's queue ({seen.reason})")
                is_told = True
            poll_s = _slept(poll_s)

    def _wait_for_end(self, job: str, began: float, limit_s: float) -> tuple[_Seen, bool]:
        """Return the job when it is over, and whether it was cancelled because it ran longer than the limit."""
        is_timed_out = False
        poll_s = _POLL_S
        while True:
            poll_s = _slept(poll_s)
            seen = self._look(job)
            if seen.is_over:
                return seen, is_timed_out
            ran_s = time.monotonic() - began
            if not is_timed_out and ran_s > limit_s:
                is_timed_out = True
                _run(["scancel", job])
            elif ran_s > limit_s + _CANCEL_PATIENCE_S:
                raise FlatoutError(f"job {job} was cancelled and does not end", hint=f"see `scontrol show job {job}`")

    def _is_without_nodes(self, seen: _Seen) -> bool:
        return self._nodes is not None and _NODES_ARE_GONE.search(seen.reason) is not None

    def _judge(self, job: str, seen: _Seen, output: Path, *, is_timed_out: bool) -> ExitStatus:
        cause, reason = _CAUSES[seen.state]
        if seen.state == "FAILED" and seen.signal == _OUTPUT_NOT_OPENED:
            raise InputError(
                f"job {job} could not write {output} on {seen.nodes}",
                hint="--out must be a folder on a file system that the login node and the nodes share",
            )
        if seen.state == "CANCELLED" and not is_timed_out and not seen.was_preempted:
            raise FlatoutError(
                f"job {job} was cancelled, but not by Flatout", hint="run the same command with its --out to resume"
            )
        if seen.was_preempted and seen.state != "COMPLETED":
            cause, reason = _CAUSES["PREEMPTED"]
        elif seen.was_suspended:
            cause, reason = "void", "it was suspended in the meantime"
        return _ended(job, seen, cause, reason, is_timed_out=is_timed_out)

    def _look(self, job: str) -> _Seen:
        silent_since = time.monotonic()
        while True:
            done = _run(
                ["scontrol", "show", "job", "--oneliner", job],
                environment={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            )
            if done.returncode == 0 and "JobState=" in done.stdout:
                return _seen(done.stdout)
            if "Invalid job id" in done.stderr:
                raise FlatoutError(f"Slurm no longer knows job {job}", hint="run the same command to resume")
            if time.monotonic() - silent_since > _MAX_SILENCE_S:
                raise FlatoutError(
                    f"Slurm does not answer: {_last_line(done.stderr)}", hint="run the same command to resume"
                )
            time.sleep(_SLOWEST_POLL_S)


def run_sbatch(words: Sequence[str], environment: Mapping[str, str], script: str) -> subprocess.CompletedProcess[str]:
    """Run `sbatch`; its arguments must include `--parsable`, and the script is given on standard input."""
    if "SLURM_JOB_ID" in environment:  # this job's variables would apply to the new one
        own = {name for name in environment if name.startswith("SLURM_") and name != "SLURM_CONF"}
        environment = {name: value for name, value in environment.items() if name not in own}
    return _run(words, environment=environment, text=script)


def job_number(done: subprocess.CompletedProcess[str]) -> str:
    """Return the ID of the job that `run_sbatch` submitted. Raise InputError with Slurm's message if it refused."""
    if done.returncode:
        raise InputError(
            f"Slurm rejects the job: {_last_line(done.stderr)}",
            hint="pass what sbatch needs with --sbatch-options '--partition=... --nodes=...'",
        )
    return done.stdout.split(";")[0].strip()


def job_name(folder: Path) -> str:
    """Return a name that all jobs of the tuning in this folder have, and no others."""
    return f"flatout-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:10]}"


def _script(command: Sequence[str], folder: Path) -> str:
    """Return the batch script. It reports in the output which paths the first node cannot see."""
    words = " ".join(shlex.quote(word).replace(HEAD_NODE, "'\"$head_node\"'") for word in command)
    # An argument with braces is quoted, so the quotes here end that quoting and start it again around the variable.
    lines = ["#!/bin/sh"]
    for needed in (folder, STARTUP):
        path = shlex.quote(str(needed))
        lines.append(
            f'[ -d {path} ] || {{ echo "FileNotFoundError: node $SLURMD_NODENAME does not see "{path} >&2; exit 72; }}'
        )
    if any(HEAD_NODE in word for word in command):
        lines.append('head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
    return "\n".join([*lines, f"exec {words}", ""])


def _seen(text: str) -> _Seen:
    def value(name: str) -> str:
        match = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
        return match[1] if match else ""

    exit_code, _, signal = value("ExitCode").partition(":")
    start = value("StartTime")
    nodes = value("NodeList")
    return _Seen(
        state=value("JobState"),
        reason=value("Reason"),
        nodes=nodes if nodes not in ("", "(null)") else None,
        exit_code=int(exit_code or 0),
        signal=int(signal or 0),
        start_unix_s=time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) if start[:1].isdecimal() else None,
        was_preempted=value("PreemptTime") not in ("", "None"),
        was_suspended=value("SuspendTime") not in ("", "None"),
    )


def _ended(job: str, seen: _Seen, cause: Cause | None, reason: str, *, is_timed_out: bool = False) -> ExitStatus:
    now = time.time()
    is_by_signal = bool(seen.signal) or seen.state == "CANCELLED"
    return ExitStatus(
        code=None if is_by_signal else seen.exit_code,
        signal=(seen.signal or 15) if is_by_signal else None,
        start_unix_s=seen.start_unix_s or now,
        end_unix_s=now,
        is_timed_out=is_timed_out,
        cause=cause,
        reason=reason,
        job=job,
        nodes=seen.nodes,
    )


def _run(
    command: Sequence[str], *, environment: Mapping[str, str] = os.environ, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command in a separate session, so that Ctrl-C reaches only Flatout."""
    try:
        return subprocess.run(
            command,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} took more than {_COMMAND_TIMEOUT_S:.0f} s")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: error: ") if lines else "it printed nothing"
