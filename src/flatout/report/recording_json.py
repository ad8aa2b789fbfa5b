"""Write a recording without a diagnosis as the JSON of the contract `flatout/recording-report`, version 2."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.events import Quality
from flatout.records.recorded_time import RecordedTime
from flatout.records.recording import DeviceFacts, HostRecording, HostUse, Measured, RankRecording, Recording
from flatout.report.json import enveloped_json

SCHEMA = "flatout/recording-report"
VERSION = 2


class RecordedRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    hostname: str
    device: DeviceFacts | None  # null: the CPU
    num_steps: int
    untraced_step_s: float | None  # median of the steps after warm-up; null: the job ended before
    num_untraced_steps: int  # the number of steps in that median
    ended_by: str | None  # exit, or the name of an exception; null: unknown, as after SIGKILL


class RecordingReport(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # of the recording
    ranks: tuple[RecordedRank, ...]
    missing_ranks: tuple[int, ...]
    traced_ranks: tuple[int, ...]  # ranks with a trace in the recording, for `flatout diagnose`
    measured: Measured
    hosts: tuple[HostUse, ...]
    runs: tuple[HostRecording, ...]
    data_quality: tuple[Quality, ...]
    recorded: RecordedTime | None = None  # where the time of the whole recording went; null: no ordinary step


def recording_json(
    recording: Recording, command: Sequence[str], *, recorded: RecordedTime | None = None, pretty: bool = True
) -> bytes:
    """Return the contract's object: schema, version, tool version, command (secrets masked), then the report."""
    report = RecordingReport(
        path=recording.path,
        ranks=tuple(_rank(rank) for rank in recording.ranks),
        missing_ranks=recording.missing_ranks,
        traced_ranks=recording.traced_ranks,
        measured=recording.measured,
        hosts=recording.hosts,
        runs=recording.runs,
        data_quality=recording.problems,
        recorded=recorded,
    )
    return enveloped_json(SCHEMA, VERSION, command, report, pretty=pretty)


def _rank(rank: RankRecording) -> RecordedRank:
    return RecordedRank(
        rank=rank.rank,
        hostname=rank.hostname,
        device=rank.device,
        num_steps=len(rank.steps.number),
        untraced_step_s=rank.untraced_step_s,
        num_untraced_steps=rank.num_untraced_steps,
        ended_by=rank.ended_by,
    )
