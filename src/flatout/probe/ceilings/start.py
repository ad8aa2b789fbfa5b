"""Start the ranks, follow the first one's progress, and leave no process behind.

In: settings. Out: `Raw`. On one host the ranks are started here and meet through a file. If torchrun or srun has
started this command once per rank, each process starts its own worker, and only the first gets a result.

If a rank started here is lost in a measurement (for example killed by the kernel for lack of memory), only that
measurement is lost: a new set of ranks continues without it, at most `_MAX_SETS` sets and within the time. If a set
already had a result, that result is kept.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import FlatoutError, InputError
from flatout.probe.ceilings.current_benchmark import read_current_benchmark
from flatout.probe.ceilings.raw import About, BenchSettings, Raw

_WORKER = (sys.executable, "-m", "flatout.probe.ceilings.worker")
_ABOUT_LIMIT_S = 120.0
_PATIENCE_S = 180.0  # time beyond the requested time: imports, the last round, the last checks
_GRACE_S = 5.0
_REST_S = 0.5  # time to read what the first rank printed before another rank failed
_MAX_SETS = 4
_SIGNALS = {one.value: one.name for one in signal.Signals}  # Python names only the first and the last real-time signal
_LEAST_S = 5.0  # least time left for another set: in less, starting it would take most of the time
# Errors that a rank prints because another rank is gone.
_OF_PEERS = re.compile(r"connection (closed|reset|refused)|broken pipe|timed out|remote process exited|gloo|nccl", re.I)


class _RankLostError(FlatoutError):
    def __init__(self, message: str, *, key: str | None, raw: Raw | None) -> None:
        super().__init__(message)
        self.key = key  # of the measurement in which the rank was lost
        self.raw = raw  # the measurements that its set of ranks had made by then


def about_machine() -> About:
    """Return whether torch is installed, and how many GPUs it sees; torch is imported in another process."""
    done = subprocess.run(
        [*_WORKER, "--about"], capture_output=True, timeout=_ABOUT_LIMIT_S, check=False, stdin=subprocess.DEVNULL
    )
    try:
        return msgspec.json.decode(done.stdout, type=About)
    except msgspec.DecodeError:
        raise FlatoutError(f"torch cannot be imported: {_last_line(done.stderr.decode(errors='replace'))}") from None


def given_rank(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return torch's variables for this process if torchrun or srun started it as one of several ranks, else None.

    Only those of srun's variables count that are set inside a step: a batch script outside a step is not a rank.
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
    settings: BenchSettings, num_ranks: int, environment: Mapping[str, str], progress: Callable[[int, int, str], None]
) -> Raw | None:
    """Return what the ranks measured; None if this process is not the first rank of a job that was already started."""
    given = given_rank(environment)
    prefix = f".flatout-bench-{os.getpid():x}-{secrets.token_hex(4)}-"
    settings = msgspec.structs.replace(settings, folder_prefix=prefix)
    with tempfile.TemporaryDirectory(prefix="flatout-bench-") as folder:
        if given is not None:
            return _run_set(settings, [given], environment, progress, Path(folder))
        ranks = [
            {"RANK": str(n), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(num_ranks)}
            for n in range(num_ranks)
        ]
        return _run_sets(settings, ranks, environment, progress, Path(folder))


def _run_sets(
    settings: BenchSettings,
    ranks: Sequence[Mapping[str, str]],
    environment: Mapping[str, str],
    progress: Callable[[int, int, str], None],
    folder: Path,
) -> Raw | None:
    """Run sets of ranks until one completes; each skips the measurements in which a rank of an earlier set was lost."""
    until = time.monotonic() + settings.time_s
    without: dict[str, str] = {}
    for number in range(1, _MAX_SETS + 1):
        room = folder / f"set-{number}"
        room.mkdir()
        now = msgspec.structs.replace(
            settings,
            meeting_file=str(room / "meeting"),
            time_s=max(until - time.monotonic(), _LEAST_S),
            without=without,
        )
        try:
            return _run_set(now, ranks, environment, progress, room)
        except _RankLostError as lost:
            if lost.raw is not None:
                return _but(lost.raw, lost.key, str(lost))
            if lost.key is None or number == _MAX_SETS or until - time.monotonic() < _LEAST_S:
                raise
            without = {**without, lost.key: str(lost)}
    raise AssertionError


def _but(raw: Raw, key: str | None, why: str) -> Raw:
    """Return the results without the measurement in which a rank was lost.

    `key` is None if no measurement was running, for example while the libraries shut down.
    """
    if key is None:
        return msgspec.structs.replace(raw, not_measured={**raw.not_measured, "the end of the ranks": why})
    for one in (one for benchmarks in raw.benchmarks for one in benchmarks if one.key == key):
        one.seconds.clear()
        one.queued_seconds.clear()
    lost = {key: why, "a second check of the results": why}
    return msgspec.structs.replace(raw, not_measured={**raw.not_measured, **lost})


def _run_set(
    settings: BenchSettings,
    ranks: Sequence[Mapping[str, str]],
    environment: Mapping[str, str],
    progress: Callable[[int, int, str], None],
    folder: Path,
) -> Raw | None:
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in ranks:
            # One by one: if a rank fails to start, the ranks before it are already in `workers` and are ended.
            workers.append(_start(settings, {**environment, **rank}, folder / rank["RANK"]))  # noqa: PERF401
        return _followed(workers, progress, folder, settings.time_s + _PATIENCE_S, ranks[0]["RANK"] == "0")
    finally:
        _end(workers)
        if settings.allow_write and settings.path is not None:
            for left in Path(settings.path).glob(f"{settings.folder_prefix}*"):
                shutil.rmtree(left, ignore_errors=True)


def _start(settings: BenchSettings, environment: Mapping[str, str], said: Path) -> subprocess.Popen[bytes]:
    """Start a rank; its standard error goes to `said`. It leads a session, so that Ctrl-C reaches only Flatout."""
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
    workers: list[subprocess.Popen[bytes]],
    progress: Callable[[int, int, str], None],
    folder: Path,
    limit_s: float,
    is_first: bool,
) -> Raw | None:
    lines: list[dict[str, Any]] = []
    reader = threading.Thread(target=_read, args=(workers[0], lines), daemon=True)
    reader.start()
    deadline, seen = time.monotonic() + limit_s, 0
    while any(process.poll() is None for process in workers):
        if any(process.poll() for process in workers):
            reader.join(_REST_S)
        _raise_if_failed(workers, folder, lines)
        if time.monotonic() > deadline:
            raise FlatoutError(f"the ranks did not end within {limit_s:.0f} s", hint="see flatout doctor")
        for line in lines[seen:]:
            if "progress" in line:
                progress(*line["progress"])
        seen = len(lines)
        time.sleep(0.05)
    reader.join(_GRACE_S)
    _raise_if_failed(workers, folder, lines)
    found = _last_raw(lines)
    if found is None and is_first:
        raise FlatoutError("the ranks ended without a result")
    return found


def _last_raw(lines: Sequence[Mapping[str, Any]]) -> Raw | None:
    found = [line["raw"] for line in lines if "raw" in line]
    return msgspec.convert(found[-1], Raw) if found else None


def _raise_if_failed(
    workers: Sequence[subprocess.Popen[bytes]], folder: Path, lines: Sequence[Mapping[str, Any]]
) -> None:
    """Raise _RankLostError with the last output of the rank that failed first, not of one that others brought down."""
    if not any(process.poll() for process in workers):
        return
    said = sorted((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    failed = []
    for process, file in zip(workers, said, strict=True):
        if code := process.poll():
            words = _last_line(file.read_text("utf-8", "replace"))
            failed.append((code > 0, bool(_OF_PEERS.search(words)), int(file.name), code, words))
    _, _, rank, code, words = min(failed)
    ended_by = _SIGNALS.get(-code, f"signal {-code}")
    how = f"ended with code {code}: {words}" if code > 0 else f"was ended by {ended_by}: {words}"
    key = read_current_benchmark(folder, rank)
    raise _RankLostError(f"rank {rank} {how}", key=key, raw=_last_raw(lines))


def _read(process: subprocess.Popen[bytes], lines: list[dict[str, Any]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(line))


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in workers:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        for process in workers:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    for process in workers:
        if process.stdout is not None and process.poll() is not None:
            process.stdout.close()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
