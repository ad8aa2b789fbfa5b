"""A recording's folder -> `Recording`. Needs nothing but the folder: no torch, no GPU, not its machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.profile.measure import measure
from flatout.profile.problems import problems
from flatout.profile.sample_lines import read_host
from flatout.profile.step_lines import read_rank
from flatout.records.recording import HostUse, RankRecording, Recording, Run

_STEPS = re.compile(r"rank\d+\.steps\.jsonl")
_TRACE = re.compile(r"rank(\d+)\.json(\.gz)?")


def is_recording(path: Path) -> bool:
    return (path / "recording.json").is_file()


def read_recording(path: Path, *, peaks: Mapping[str, float] | None = None) -> Recording:
    """Read what is there; what is damaged or missing becomes a problem of the recording.

    `peaks` are measured FLOP/s by operand type for the MFU, instead of the vendor's. Raises InputError where `path` is
    no recording.
    """
    if not is_recording(path):
        raise InputError(f"{path} is no recording", hint="record one: flatout profile -- COMMAND")
    try:
        files = sorted(path.iterdir())
        ranks = [rank for file in files if _STEPS.fullmatch(file.name) and (rank := read_rank(file)) is not None]
        runs = [run for file in files if re.fullmatch(r"host-.+\.json", file.name) and (run := _run(file)) is not None]
        ranks.sort(key=lambda rank: rank.rank)
        hosts = [
            host for file in files if file.name.endswith(".samples.jsonl") and (host := _host(file, ranks)) is not None
        ]
    except OSError as error:
        raise InputError(
            f"{error.filename or path} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="check its permissions",
        ) from error
    traced = [int(found[1]) for file in files if (found := _TRACE.fullmatch(file.name))]
    return Recording(
        path=str(path),
        ranks=tuple(ranks),
        hosts=tuple(hosts),
        runs=tuple(runs),
        measured=measure(ranks, peaks),
        problems=tuple(problems(runs, ranks, traced)),
    )


def _run(file: Path) -> Run | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Run)
    except msgspec.DecodeError:
        return None  # claimed, and never written


def _host(file: Path, ranks: list[RankRecording]) -> HostUse | None:
    """Over the settled steps of its ranks, or else over all of its samples."""
    hostname = file.name.removeprefix("host-").removesuffix(".samples.jsonl")
    starts, ends = [], []
    for rank in ranks:
        steps = rank.steps
        if rank.hostname == hostname and rank.settled_step is not None and (steps.number >= rank.settled_step).any():
            first = int((steps.number >= rank.settled_step).argmax())
            starts.append(int(steps.start_ns[first]) / 1e9)
            ends.append(int(steps.start_ns[-1]) / 1e9 + float(steps.duration_s[-1]))
    return read_host(file, min(starts, default=None), max(ends, default=None))
