"""Start the ranks, follow the first one's progress, and leave no process behind.

In: settings. Out: `Raw`. On one host the ranks are started here, and meet through a file. Where torchrun or srun has
started this command once a rank already, each starts its own worker, and only the first one gets a result.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import FlatoutError, InputError
from flatout.probe.ceilings.raw import About, Raw, Settings

_WORKER = (sys.executable, "-m", "flatout.probe.ceilings.worker")
_ABOUT_LIMIT_S = 120.0
_PATIENCE_S = 180.0  # beyond the time that was asked for: imports, the last round, the last checks
_GRACE_S = 5.0


def about_machine() -> About:
    """Whether torch is there, and how many GPUs it sees; torch is imported in another process."""
    done = subprocess.run(
        [*_WORKER, "--about"], capture_output=True, timeout=_ABOUT_LIMIT_S, check=False, stdin=subprocess.DEVNULL
    )
    try:
        return msgspec.json.decode(done.stdout, type=About)
    except msgspec.DecodeError:
        raise FlatoutError(f"torch cannot be imported: {_last_line(done.stderr.decode(errors='replace'))}") from None


def given_rank(environment: Mapping[str, str]) -> dict[str, str] | None:
    """The place of this process in a job that torchrun or srun started, as torch's variables; None where it is alone.

    Of srun's variables, those that only a step has: a batch script alone is no rank of anything.
    """
    if "RANK" in environment and _number(environment, "WORLD_SIZE", 1) > 1:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in environment]
        if missing:
            raise InputError(f"the environment has RANK, but no {', '.join(missing)}", hint="start it with torchrun")
        for name in ("RANK", "LOCAL_RANK"):
            _number(environment, name, 0)
        return {name: environment[name] for name in names}
    if _number(environment, "SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_PROCID" in environment:
        found = subprocess.run(
            ["scontrol", "show", "hostnames", environment.get("SLURM_STEP_NODELIST", "")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if found.returncode or not found.stdout.split():
            raise InputError(f"scontrol does not name the nodes of the step: {_last_line(found.stderr)}")
        return {
            "RANK": environment["SLURM_PROCID"],
            "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
            "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
            "MASTER_ADDR": environment.get("MASTER_ADDR", found.stdout.split()[0]),
            "MASTER_PORT": environment.get(
                "MASTER_PORT", str(20_000 + int(environment.get("SLURM_JOB_ID", "0")) % 20_000)
            ),
        }
    return None


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, str(otherwise))
    if not text.isdecimal():
        raise InputError(f"the environment's {name} must be a whole number, but is `{text[:50]}`", hint=f"unset {name}")
    return int(text)


def run_workers(
    settings: Settings, num_ranks: int, environment: Mapping[str, str], progress: Callable[[int, int, str], None]
) -> Raw | None:
    """What the ranks measured; None where this process is a later rank of a larger job, and has none to give."""
    given = given_rank(environment)
    prefix = f".flatout-bench-{os.getpid():x}-{secrets.token_hex(4)}-"
    settings = msgspec.structs.replace(settings, folder_prefix=prefix)
    with tempfile.TemporaryDirectory(prefix="flatout-bench-") as folder:
        if given is None:
            settings = msgspec.structs.replace(settings, meeting_file=str(Path(folder, "meeting")))
            ranks = [
                {"RANK": str(n), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(num_ranks)}
                for n in range(num_ranks)
            ]
        else:
            ranks = [given]
        team = [_start(settings, {**environment, **rank}, Path(folder, rank["RANK"])) for rank in ranks]
        try:
            return _followed(team, progress, Path(folder), settings.time_s + _PATIENCE_S, ranks[0]["RANK"] == "0")
        finally:
            _end(team)
            if settings.allow_write and settings.path is not None:
                for left in Path(settings.path).glob(f"{prefix}*"):
                    shutil.rmtree(left, ignore_errors=True)


def _start(settings: Settings, environment: Mapping[str, str], said: Path) -> subprocess.Popen[bytes]:
    """Its standard error goes to the file `said`. It leads a session, so that Ctrl-C reaches us alone."""
    with said.open("wb") as file:
        process = subprocess.Popen(
            _WORKER,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(settings))
        process.stdin.close()
    return process


def _followed(
    team: list[subprocess.Popen[bytes]],
    progress: Callable[[int, int, str], None],
    folder: Path,
    limit_s: float,
    is_first: bool,
) -> Raw | None:
    lines: list[dict[str, Any]] = []
    reader = threading.Thread(target=_read, args=(team[0], lines), daemon=True)
    reader.start()
    deadline, seen = time.monotonic() + limit_s, 0
    while any(process.poll() is None for process in team):
        _raise_if_failed(team, folder)
        if time.monotonic() > deadline:
            raise FlatoutError(f"the ranks have not ended within {limit_s:.0f} s", hint="see flatout doctor")
        for line in lines[seen:]:
            if "progress" in line:
                progress(*line["progress"])
        seen = len(lines)
        time.sleep(0.05)
    reader.join(_GRACE_S)
    _raise_if_failed(team, folder)
    found = [line["raw"] for line in lines if "raw" in line]
    if not found:
        if is_first:
            raise FlatoutError("the ranks ended without a result")
        return None
    return msgspec.convert(found[0], Raw)


def _raise_if_failed(team: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """FlatoutError with the last words of a rank that failed by itself: not of one that others brought down."""
    said = sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    for process, file in zip(team, said, strict=True):
        if process.poll():
            words = _last_line(file.read_text("utf-8", "replace"))
            raise FlatoutError(f"rank {file.name} ended with code {process.returncode}: {words}")


def _read(process: subprocess.Popen[bytes], lines: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(line))


def _end(team: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in team:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        for process in team:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    for process in team:
        if process.stdout is not None and process.poll() is not None:
            process.stdout.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
