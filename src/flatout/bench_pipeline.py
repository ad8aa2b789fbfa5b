"""Run `flatout bench`: measure ceilings with workers on this machine, and save them.

Composes the probe that measures, doctor's comparison of peers, and the state folder. Nothing is printed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.doctor.peers import MIN_PEERS, outliers
from flatout.errors import InputError, UsageError
from flatout.probe.ceilings.names import NAMES
from flatout.probe.ceilings.raw import About, BenchSettings
from flatout.probe.ceilings.saved import SCHEMA, VERSION, saved_path
from flatout.probe.ceilings.start import about_machine, given_rank, run_workers
from flatout.probe.ceilings.storage import NAMES as STORAGE_NAMES
from flatout.probe.ceilings.summary import ceilings_of
from flatout.probe.foreign_load import ForeignLoad
from flatout.probe.limits import allowed_cores, free_bytes
from flatout.records.ceilings import Ceilings
from flatout.report.files import check_new, write_new
from flatout.report.json import enveloped_json

_MIN_MEASURING_S = 5.0
_MAX_CPU_RANKS = 8
_END_S, _GPU_END_S = 3.0, 5.0  # time for the last processes to end, and to close communicators and contexts
_RANK_BYTES = 512 << 20  # memory of a process with torch, and of its buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What to measure, for how long, and where to save the ceilings. `out` None: in the state folder."""

    time_s: float
    path: Path | None = None
    allow_write: bool = False
    num_ranks: int | None = None
    only: tuple[str, ...] = ()
    out: Path | None = None
    force: bool = False

    def check(self) -> None:
        """Raise InputError, UsageError or OutputError if something cannot be measured or saved."""
        if self.path is not None and not self.path.is_dir():
            raise InputError(f"`--path` must be a folder, but `{self.path}` is not")
        if self.allow_write:
            _check_writable(self.path)
        if self.out is not None:
            check_new(self.out, force=self.force)
        _check_names(self.only, has_path=self.path is not None)


def is_reporting_rank() -> bool:
    """Whether this process reports; of several started by a launcher, only rank 0 does."""
    rank = given_rank(os.environ)
    return rank is None or rank["RANK"] == "0"


def measure(request: BenchRequest, progress: Callable[[int, int, str], None]) -> Ceilings | None:
    """Measure this machine; None in a process that does not report.

    Raises UsageError for more ranks than the machine can run, and if nothing that was requested could be measured.
    """
    began_s = time.monotonic()
    machine = about_machine()
    num_ranks = choose_num_ranks(request.num_ranks, machine)
    end_s = _GPU_END_S if machine.num_gpus else _END_S
    left_s = request.time_s - (time.monotonic() - began_s) - end_s
    settings = BenchSettings(
        time_s=max(_MIN_MEASURING_S, left_s),
        path=str(request.path.resolve()) if request.path is not None else None,
        allow_write=request.allow_write,
        uses_gpu=machine.num_gpus > 0,
        only=request.only,
    )
    other_processes = ForeignLoad([os.getpid()], str(request.out or ""))
    other_processes.read()
    raw = run_workers(settings, num_ranks, os.environ, progress)
    if raw is None:
        return None
    ceilings = ceilings_of(
        raw,
        took_s=time.monotonic() - began_s,
        outliers=lambda values, share: outliers(values, share=share),
        min_peers=MIN_PEERS,
        cores_busy_by_others=other_processes.read(),
    )
    if request.only and not ceilings.measurements and not ceilings.wrong:
        reasons = [f"{name}: {reason}" for name, reason in list(ceilings.not_measured.items())[:3]]
        raise UsageError(
            f"nothing in `--only {' '.join(request.only)}` was measured",
            hint="; ".join(reasons) or "raise --time",
        )
    return ceilings


def save(ceilings: Ceilings, request: BenchRequest, command: Sequence[str]) -> Path | None:
    """Save the ceilings and return the file; None if they are not saved.

    In the state folder they replace the previous ones. Only complete and correct ceilings go there, since others are
    compared with them.
    """
    is_complete = not request.only
    if request.out is None and (not is_complete or ceilings.wrong):
        return None
    target = request.out or saved_path(ceilings.host)
    content = enveloped_json(SCHEMA, VERSION, command, ceilings)
    write_new(target, content, force=request.force or request.out is None)
    return target


def choose_num_ranks(requested: int | None, machine: About) -> int:
    """Return the number of processes: as requested, otherwise one per GPU or, without GPUs, one per core up to 8."""
    if not machine.has_torch:
        if requested is not None and requested > 1:
            raise UsageError("several ranks need torch, which is not installed", hint="pip install torch")
        return 1
    if machine.num_gpus:
        if requested is not None and requested > machine.num_gpus:
            raise UsageError(f"`--ranks` must be at most the number of GPUs, {machine.num_gpus}, but got {requested}")
        return requested or machine.num_gpus
    if requested is not None:
        _check_memory(requested)
        return requested
    return max(2, min(_MAX_CPU_RANKS, int(allowed_cores())))


def _check_memory(num_ranks: int) -> None:
    free = free_bytes()
    needed = num_ranks * _RANK_BYTES
    if num_ranks > _MAX_CPU_RANKS and needed > free:
        most = max(_MAX_CPU_RANKS, int(free // _RANK_BYTES))
        raise UsageError(
            f"`--ranks {num_ranks}` needs {needed / 1e9:.0f} GB of memory, but only {free / 1e9:.0f} GB are free",
            hint=f"pass --ranks {most} or fewer",
        )


def _check_writable(path: Path | None) -> None:
    if path is None:
        raise UsageError("`--allow-write` needs a folder to write to", hint="flatout bench --path DIR --allow-write")
    if not os.access(path, os.W_OK):
        raise InputError(f"`{path}` is not writable", hint="omit --allow-write to only read")


def _check_names(only: Sequence[str], *, has_path: bool) -> None:
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise UsageError(f"`{unknown[0]}` is not a measurement", hint=f"--only {', '.join(NAMES)}")
    if only and not has_path and set(only) <= set(STORAGE_NAMES):
        raise UsageError(f"`--only {' '.join(only)}` needs a folder on the storage to measure", hint="--path DIR")
