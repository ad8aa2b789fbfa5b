"""Read the heartbeats that `inside/liveness/beat.py` writes in a job's processes -> one `HeartbeatSample` per rank.

Reading needs no answer from the process, so a stuck process can be read too. Files with any other format are skipped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from uuid import UUID

import msgspec
import numpy as np

from flatout.input_files import decode_json, open_file
from flatout.inside.protocol import HEARTBEAT_HEADER_BYTES, HEARTBEAT_RECENT, File
from flatout.launch.process_identity import is_alive, own_namespace, state_of
from flatout.records.watch import LoaderSettings

BLOCK_STEPS = 20  # steps whose median shows the current step time
_MAX_TRIES = 20  # to read a heartbeat while steps end


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    version: int
    pid: int
    ticks: int
    pid_namespace: str
    hostname: str
    began_ns: int
    names: tuple[tuple[str, int], ...]
    phases: tuple[str, ...]
    groups: tuple[str, ...]


class TimedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange of gradients that DDP has timed (`inside/liveness/exchange.py`)."""

    iteration: int  # DDP's iteration number, the same on all ranks
    exposed_ns: int  # after the end of the backward pass
    per_step: int
    num_ranks: int  # participants

    @property
    def step(self) -> int:
        """Return the step that the exchange belongs to."""
        return self.iteration // self.per_step

    @property
    def exposed_s(self) -> float:
        """Return the exposed seconds of the whole step."""
        return self.exposed_ns * self.per_step / 1e9


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one step of a rank."""

    step: int  # as the process counts its steps, from 1
    duration_s: float
    data_s: float  # the part spent waiting for batches
    away_s: float  # the part spent in checkpoints and evaluations


class HeartbeatSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the heartbeat of one of the job's processes. Times are in seconds of CLOCK_MONOTONIC."""

    name: str  # the process's name: host and PID
    hostname: str
    pid: int
    rank: int | None  # None: unknown whether it is a rank
    world_size: int
    is_local: bool  # whether its PID is valid on this host and in this PID namespace
    is_alive: bool  # unknown, and therefore assumed, for processes that are not local
    has_ended: bool  # whether the process ended on its own, rather than being killed
    num_events: int
    num_steps: int
    base_step: int | None  # steps made before this process, by the optimizer's count
    has_loaded: bool
    phase: str
    phase_since_s: float
    began_s: float
    first_step_end_s: float | None
    last_step_end_s: float | None
    num_checkpoints: int
    checkpoint_step: int | None
    main_thread: int
    gives_stacks: bool
    has_gpu: bool
    gpu: str | None  # UUID as NVML writes it
    exchange: TimedExchange | None  # the last timed exchange
    spent_s: Mapping[str, float]  # by phase, since the process began
    spent_at_first_s: Mapping[str, float]
    spent_at_last_s: Mapping[str, float]
    longest_s: Mapping[str, float]  # `compute`: the longest step
    sequences: Mapping[str, int]  # collectives begun, by process group
    step_buckets: tuple[int, ...]  # [b]: number of steps that took 2**(b-1) to 2**b ns
    fine_buckets: tuple[int, ...] = ()  # the same by finer buckets, see `protocol`
    recent: tuple[StepTimes, ...] = ()  # the last steps, the oldest first
    loader: LoaderSettings | None = None  # of the last epoch that began in training; None: unknown
    loader_request: int = 0  # the last request for other settings that it followed; 0: none
    num_samples: int | None = None  # of the training batches so far; None: their shapes do not show it
    num_tokens: int | None = None
    num_values: int | None = None  # elements of the tensors by which these batches are counted
    ended_s: float | None = None  # when it ended on its own
    is_stopped: bool = False  # by a signal such as SIGSTOP (state T)

    @property
    def block_median_s(self) -> float | None:
        """Return the median of the last steps without checkpoints and evaluations; None before the second step."""
        times = [step.duration_s - step.away_s for step in self.recent[-BLOCK_STEPS:]]
        return median(times) if times else None

    @property
    def tokens_per_step(self) -> float | None:
        """Return the mean number of tokens of a step; None if batches do not show it."""
        return None if self.num_tokens is None or not self.num_steps else self.num_tokens / self.num_steps

    @property
    def samples_per_step(self) -> float | None:
        """Return the mean number of samples of a step; None if batches do not show it."""
        return None if self.num_samples is None or not self.num_steps else self.num_samples / self.num_steps

    @property
    def data_share(self) -> float | None:
        """Return the share of the last steps spent waiting for batches; None before the second step."""
        block = self.recent[-BLOCK_STEPS:]
        total_s = sum(step.duration_s for step in block)
        return sum(step.data_s for step in block) / total_s if total_s else None

    def share_in(self, phase: str) -> float | None:
        """Return the share of the time since the first step that was spent in a phase; None before the second step."""
        if self.first_step_end_s is None or self.last_step_end_s is None:
            return None
        total_s = self.last_step_end_s - self.first_step_end_s
        spent_s = self.spent_at_last_s.get(phase, 0.0) - self.spent_at_first_s.get(phase, 0.0)
        return spent_s / total_s if total_s > 0 else None


class HeartbeatReader:
    """Reads the heartbeats in a folder, repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, tuple[int, mmap.mmap]] = {}  # with the file's inode, because a process can start again

    def read(self) -> list[HeartbeatSample]:
        """Return the samples of the ranks in order, then those of processes whose rank is unknown."""
        for path in self._folder.glob(File.HEARTBEAT.glob):
            with suppress(FileNotFoundError):  # `flatout run` removes the folder when the job ends
                self._map(path)
        pulses = [pulse for name, (_, map) in self._maps.items() if (pulse := _read(name, map)) is not None]
        return sorted(pulses, key=lambda pulse: (pulse.rank is None, pulse.rank or 0, pulse.began_s))

    def _map(self, path: Path) -> None:
        number = path.stat().st_ino
        if path.name not in self._maps or self._maps[path.name][0] != number:
            with open_file(path) as file:
                self._maps[path.name] = number, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        for _, map in self._maps.values():
            map.close()
        self._maps.clear()


def ranks_of(pulses: list[HeartbeatSample]) -> list[HeartbeatSample]:
    """Return one sample per rank. If the launcher restarted ranks, the samples are from its last attempt."""
    last: dict[int, HeartbeatSample] = {}
    for pulse in pulses:
        if pulse.rank is not None:
            other = last.get(pulse.rank)
            if other is None or (pulse.is_alive, pulse.began_s) >= (other.is_alive, other.began_s):
                last[pulse.rank] = pulse
    return [last[rank] for rank in sorted(last)]


def _read(name: str, map: mmap.mmap) -> HeartbeatSample | None:
    try:
        header = decode_json(map[:HEARTBEAT_HEADER_BYTES].partition(b"\n")[0], type=_Header)
    except msgspec.DecodeError:
        return None
    values: dict[str, tuple[int, ...]] = {}
    for _ in range(_MAX_TRIES):
        numbers = np.frombuffer(map[HEARTBEAT_HEADER_BYTES:], dtype="<i8").tolist()
        place = 0
        for slot, count in header.names:
            values[slot] = tuple(numbers[place : place + count])
            place += count
        if values["change"][0] % 2 == 0:
            break
    is_local = header.hostname == os.uname().nodename and header.pid_namespace in ("", own_namespace())
    one = {slot: value[0] for slot, value in values.items() if value}

    def by_phase(slot: str) -> dict[str, float]:
        return {phase: ns / 1e9 for phase, ns in zip(header.phases, values[slot], strict=True)}

    return HeartbeatSample(
        name=name.removeprefix(File.HEARTBEAT.before),
        hostname=header.hostname,
        pid=header.pid,
        rank=_known(one["rank"]),
        world_size=one["world_size"],
        is_local=is_local,
        is_alive=not is_local or is_alive(header.pid, header.ticks),
        is_stopped=is_local and state_of(header.pid) == "T",
        has_ended=bool(one["has_ended"]),
        ended_s=one["has_ended"] / 1e9 if one["has_ended"] else None,
        num_events=one["num_events"],
        num_steps=one["num_steps"],
        base_step=_known(one["base_step"]),
        has_loaded=bool(one["has_loaded"]),
        phase=header.phases[one["phase"]],
        phase_since_s=one["phase_since"] / 1e9,
        began_s=header.began_ns / 1e9,
        first_step_end_s=one["first_step_end"] / 1e9 if one["num_steps"] else None,
        last_step_end_s=one["last_step_end"] / 1e9 if one["num_steps"] else None,
        num_checkpoints=one["num_checkpoints"],
        checkpoint_step=_known(one["checkpoint_step"]),
        main_thread=one["main_thread"],
        gives_stacks=bool(one["gives_stacks"]),
        has_gpu=bool(one["has_gpu"]),
        gpu=_gpu(values["gpu"]),
        exchange=_exchange(*values["exchange"]),
        spent_s=by_phase("spent"),
        spent_at_first_s=by_phase("spent_at_first"),
        spent_at_last_s=by_phase("spent_at_last"),
        longest_s=by_phase("longest"),
        sequences=dict(zip(header.groups, values["sequence"], strict=False)),
        step_buckets=values["buckets"],
        fine_buckets=values.get("fine_buckets", ()),
        recent=_recent(one["num_steps"], values),
        loader=_loader(*values.get("loader", (0, 0, 0))),
        loader_request=values.get("loader", (0, 0, 0))[2],
        num_samples=values.get("loaded", (0, 0))[0] or None,
        num_tokens=values.get("loaded", (0, 0))[1] or None,
        num_values=values.get("loaded_values", (0,))[0] or None,
    )


def _recent(num_steps: int, values: Mapping[str, tuple[int, ...]]) -> tuple[StepTimes, ...]:
    """Return the times of the last steps. The first step has none, because its beginning is unknown."""
    if "recent" not in values:
        return ()
    first = max(num_steps - HEARTBEAT_RECENT + 1, 2)
    steps = []
    for step in range(first, num_steps + 1):
        place = (step - 1) % HEARTBEAT_RECENT
        steps.append(
            StepTimes(
                step=step,
                duration_s=values["recent"][place] / 1e9,
                data_s=values["recent_data"][place] / 1e9,
                away_s=values["recent_away"][place] / 1e9,
            )
        )
    return tuple(steps)


def _gpu(halves: tuple[int, ...]) -> str | None:
    if not any(halves):
        return None
    return f"GPU-{UUID(bytes=b''.join(half.to_bytes(8, 'big', signed=True) for half in halves))}"


def _exchange(iteration: int, exposed_ns: int, per_step: int, num_ranks: int) -> TimedExchange | None:
    if not iteration:
        return None
    return TimedExchange(iteration=iteration, exposed_ns=exposed_ns, per_step=per_step, num_ranks=num_ranks)


def _loader(num_workers: int, prefetch_factor: int, _: int) -> LoaderSettings | None:
    return LoaderSettings(num_workers=num_workers, prefetch_factor=prefetch_factor) if num_workers else None


def _known(value: int) -> int | None:
    return None if value < 0 else value
