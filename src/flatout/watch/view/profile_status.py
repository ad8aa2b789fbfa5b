"""The status of a job of `flatout profile`. In: the step files that its ranks write. Out: `WatchStatus`."""

from __future__ import annotations

import time
from contextlib import suppress
from statistics import median

import numpy as np

from flatout.errors import InputError
from flatout.inside.protocol import File
from flatout.keep.heartbeats import BLOCK_STEPS
from flatout.profile.step_lines import read_rank
from flatout.records.recording import RankRecording
from flatout.records.watch import RankState, RankStatus, WatchStatus
from flatout.watch.jobs import RunningJob


class ProfileStatus:
    """Reads one job of `flatout profile` again and again."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job

    def read(self) -> WatchStatus:
        recordings = []
        for path in sorted(self._job.folder.glob(File.STEPS.glob)):
            with suppress(OSError, InputError):
                recordings.append(read_rank(path))
        ranks = sorted(
            (_rank_status(recording) for recording in recordings if recording is not None),
            key=lambda rank: rank.rank or 0,
        )
        world_size = max((recording.world_size for recording in recordings if recording is not None), default=None)
        step_times = [rank.step_s for rank in ranks if rank.step_s is not None]
        seen = {rank.rank for rank in ranks}
        return WatchStatus(
            name=self._job.name,
            program=self._job.program,
            pid=self._job.pid,
            attempt=None,
            world_size=world_size,
            ranks=tuple(ranks),
            missing_ranks=tuple(rank for rank in range(world_size or 0) if rank not in seen),
            step_s=median(step_times) if step_times else None,
            goodput=None,
            devices=None,
            notes=("steps are written with a delay of a second; goodput is known only under `flatout run`",),
        )


def _rank_status(recording: RankRecording) -> RankStatus:
    steps = recording.steps
    durations_s = steps.duration_s[-BLOCK_STEPS:]
    has_steps = bool(len(durations_s))
    total_s = float(durations_s.sum())
    state: RankState = "running" if has_steps else "starting"
    return RankStatus(
        rank=recording.rank,
        host=recording.hostname,
        pid=None,
        state=state if recording.ended_by is None else "ended",
        steps=len(steps.duration_s),
        step_s=float(np.median(durations_s - steps.checkpoint_s[-BLOCK_STEPS:])) if has_steps else None,
        data_share=float(steps.loader_s[-BLOCK_STEPS:].sum()) / total_s if total_s else None,
        age_s=_age_s(recording) if has_steps else None,
    )


def _age_s(recording: RankRecording) -> float:
    steps = recording.steps
    end_s = float(steps.start_ns[-1]) / 1e9 + float(steps.duration_s[-1])
    return max(time.time() - end_s, 0.0)
