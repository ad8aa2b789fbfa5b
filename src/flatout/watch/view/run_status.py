"""The status of a job of `flatout run`. In: its heartbeats, ledger and other nodes. Out: `WatchStatus`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from flatout.keep.heartbeats import HeartbeatSample
from flatout.launch.process_identity import resident_bytes
from flatout.probe.foreign_load import ForeignLoad
from flatout.records.watch import GpuStatus, RankState, RankStatus, WatchStatus
from flatout.watch.diagnosis.live import LiveDiagnosis
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.exporter.ledger_tail import LedgerTail
from flatout.watch.exporter.rank_metrics import exposed_of_one_exchange
from flatout.watch.jobs import RunningJob
from flatout.watch.view.gpu_status import GpuReadings
from flatout.watch.view.node_status import ranks_of_other_nodes

_NO_THROUGHPUT = "tokens/s and MFU are unknown: the heartbeat counts neither; flatout profile does"
_NO_EXCHANGE = "lateness is unknown: no exchange of gradients that DDP times on all ranks was seen yet"


class RunStatus:
    """Reads one job of `flatout run` again and again."""

    def __init__(self, job: RunningJob, gpus: GpuReadings) -> None:
        self._job = job
        self._gpus = gpus
        self.heartbeats = LatestHeartbeats(job.folder)
        own_ledger = job.ledger if job.ledger is not None else job.folder / "ledger.jsonl"
        self._ledger = LedgerTail(own_ledger)
        self._throttle: dict[str, tuple[str, ...]] = {}
        foreign_load = ForeignLoad((job.pid,), str(job.folder))
        self._diagnosis = LiveDiagnosis(throttle=lambda: self._throttle, other_cores=foreign_load.read)

    def read(self) -> WatchStatus:
        job = self._job
        samples = self.heartbeats.read()
        gpus = self._gpus.by_uuid()
        self._throttle = {uuid: gpu.throttle for uuid, gpu in gpus.items()}
        self._diagnosis.look(samples, time.monotonic())
        own = _own_ranks(samples, gpus)
        others = ranks_of_other_nodes(job.ledger, {rank.rank for rank in own}) if job.ledger is not None else ()
        ranks = sorted((*own, *others), key=lambda rank: rank.rank or 0)
        world_size = samples[0].world_size if samples else None
        totals = self._ledger.totals()
        step_times = [rank.step_s for rank in ranks if rank.step_s is not None and rank.state == "running"]
        notes = [_NO_THROUGHPUT]
        if len(ranks) > 1 and all(rank.late_s is None for rank in ranks):
            notes.append(_NO_EXCHANGE)
        seen = {rank.rank for rank in ranks}
        return WatchStatus(
            name=job.name,
            program=job.program,
            pid=job.pid,
            attempt=_number_of(self.heartbeats.latest_attempt()),
            world_size=world_size,
            ranks=tuple(ranks),
            missing_ranks=tuple(rank for rank in range(world_size or 0) if rank not in seen),
            step_s=median(step_times) if step_times else None,
            goodput=totals.goodput,
            devices=totals.num_devices,
            findings=self._diagnosis.findings,
            notes=tuple(notes),
        )


def _own_ranks(samples: list[HeartbeatSample], gpus: Mapping[str, GpuStatus]) -> list[RankStatus]:
    now_s = time.monotonic()
    exposed = exposed_of_one_exchange(samples)
    longest_s = max(exposed.values(), default=0.0)
    ranks = []
    for sample in samples:
        exposed_s = exposed.get(sample.rank)
        ranks.append(
            RankStatus(
                rank=sample.rank,
                host=sample.hostname,
                pid=sample.pid if sample.is_local else None,
                state=state_of_sample(sample),
                steps=sample.num_steps,
                step_s=sample.block_median_s,
                data_share=sample.data_share,
                exposed_s=exposed_s,
                late_s=None if exposed_s is None else longest_s - exposed_s,
                phase=sample.phase,
                age_s=None if sample.last_step_end_s is None else max(now_s - sample.last_step_end_s, 0.0),
                memory_bytes=resident_bytes(sample.pid) if sample.is_local else None,
                gpu=gpus.get(sample.gpu) if sample.gpu is not None else None,
            )
        )
    return ranks


def state_of_sample(sample: HeartbeatSample) -> RankState:
    """Return the state of a rank's process; a process that is gone without having ended on its own is lost."""
    if sample.has_ended:
        return "ended"
    if not sample.is_alive:
        return "lost"
    if sample.is_stopped:
        return "stopped"
    return "running" if sample.num_steps else "starting"


def _number_of(folder: Path | None) -> int | None:
    return None if folder is None else int(folder.name.rpartition("-")[2])
