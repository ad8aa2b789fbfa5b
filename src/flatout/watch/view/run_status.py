"""The status of a job of `flatout run`. In: its heartbeats, ledger and other nodes. Out: `WatchStatus`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from flatout.inside.protocol import Phase
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.other_runs import read_about
from flatout.launch.process_identity import resident_bytes
from flatout.probe.foreign_load import ForeignLoad
from flatout.records.watch import GpuStatus, LiveFinding, RankState, RankStatus, WatchStatus
from flatout.watch.diagnosis.host_counters import HostCountersOfBlock
from flatout.watch.diagnosis.live import LiveDiagnosis
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.exporter.ledger_tail import LedgerTail
from flatout.watch.exporter.rank_metrics import exposed_of_one_exchange, mfu_of
from flatout.watch.jobs import RunningJob
from flatout.watch.view.gpu_status import GpuReadings
from flatout.watch.view.node_status import ranks_of_other_nodes
from flatout.watch.view.price import usd_per_gpu_hour, with_money

_NO_EXCHANGE = "lateness is unknown: no exchange of gradients that DDP times on all ranks was seen yet"


class RunStatus:
    """Reads one job of `flatout run` again and again."""

    def __init__(self, job: RunningJob, gpus: GpuReadings, gpu_price: float | None = None) -> None:
        """`gpu_price` is in USD per GPU-hour. None: the catalogue's."""
        self.job = job
        self._gpus = gpus
        self._price = usd_per_gpu_hour(gpu_price, gpus.model)
        about = read_about(job.folder)
        self._peak_time = about.peak_time if about is not None else None
        self._promised = about.expectation if about is not None else None
        self.heartbeats = LatestHeartbeats(job.folder)
        own_ledger = job.ledger if job.ledger is not None else job.folder / "ledger.jsonl"
        self._ledger = LedgerTail(own_ledger)
        self._throttle: dict[str, tuple[str, ...]] = {}
        self._foreign_load = ForeignLoad((job.pid,), str(job.folder))
        self._other_cores: float | None = None
        self._diagnosis = LiveDiagnosis(
            throttle=lambda: self._throttle,
            other_cores=self._read_other_cores,
            idle_cores=lambda: self._foreign_load.idle_cores,
            host=HostCountersOfBlock(),
        )

    def read(self) -> WatchStatus:
        job = self.job
        samples = self.heartbeats.read()
        gpus = self._gpus.by_uuid()
        self._throttle = {uuid: gpu.throttle for uuid, gpu in gpus.items()}
        self._diagnosis.look(samples, time.monotonic())
        own = _own_ranks(samples, gpus)
        others = ranks_of_other_nodes(job.ledger, {rank.rank for rank in own}) if job.ledger is not None else ()
        ranks = sorted((*own, *others), key=lambda rank: rank.rank or 0)
        world_size = samples[0].world_size if samples else None
        totals = self._ledger.totals()
        throughput = _throughput(samples)
        mfu = mfu_of([sample.block_median_s for sample in samples], world_size, self._peak_time)
        return WatchStatus(
            name=job.name,
            program=job.program,
            pid=job.pid,
            attempt=_number_of(self.heartbeats.latest_attempt()),
            world_size=world_size,
            ranks=tuple(ranks),
            missing_ranks=_missing_ranks(ranks, world_size),
            step_s=_median_step_s(ranks),
            goodput=totals.goodput,
            devices=totals.num_devices,
            tokens_per_s=throughput.tokens_per_s,
            samples_per_s=throughput.samples_per_s,
            mfu=mfu,
            promised=self._promised,
            findings=tuple(self._with_money(finding) for finding in self._diagnosis.findings),
            notes=_notes(ranks, throughput, mfu),
        )

    def _read_other_cores(self) -> float | None:
        """Return the last known load of other programs: it is not read again at once."""
        load = self._foreign_load.read()
        self._other_cores = self._other_cores if load is None else load
        return self._other_cores

    def _with_money(self, finding: LiveFinding) -> LiveFinding:
        return msgspec.structs.replace(finding, cost_usd=with_money(finding.cost_gpu_h, self._price))


class _Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the ranks of this host together; None: unknown."""

    tokens_per_s: float | None
    samples_per_s: float | None


def _throughput(samples: list[HeartbeatSample]) -> _Throughput:
    def rate(per_step: Callable[[HeartbeatSample], float | None]) -> float | None:
        rates = [
            count / sample.block_median_s
            for sample in samples
            if sample.block_median_s and (count := per_step(sample)) is not None
        ]
        return sum(rates) if rates else None

    return _Throughput(
        tokens_per_s=rate(lambda sample: sample.tokens_per_step),
        samples_per_s=rate(lambda sample: sample.samples_per_step),
    )


_NOT_SHOWN: dict[str, Callable[[_Throughput, float | None], bool]] = {
    "tokens/s is unknown: batches of the loader do not show their tokens": lambda known, _: known.tokens_per_s is None,
    "MFU is unknown: start the job with --recording of a `flatout profile` on GPUs of the catalogue": (
        lambda _, mfu: mfu is None
    ),
}


def _missing_ranks(ranks: Sequence[RankStatus], world_size: int | None) -> tuple[int, ...]:
    seen = {rank.rank for rank in ranks}
    return tuple(rank for rank in range(world_size or 0) if rank not in seen)


def _median_step_s(ranks: Sequence[RankStatus]) -> float | None:
    """Return the median step of the ranks that run; None if none of them is known."""
    step_times = [rank.step_s for rank in ranks if rank.step_s is not None and rank.state == "running"]
    return median(step_times) if step_times else None


def _notes(ranks: Sequence[RankStatus], throughput: _Throughput, mfu: float | None) -> tuple[str, ...]:
    """Say why numbers are not shown."""
    notes = [reason for reason, is_missing in _NOT_SHOWN.items() if is_missing(throughput, mfu)]
    if len(ranks) > 1 and all(rank.late_s is None for rank in ranks):
        notes.append(_NO_EXCHANGE)
    return tuple(notes)


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
                checkpoint_share=sample.share_in(Phase.CHECKPOINT),
                evaluation_share=sample.share_in(Phase.EVALUATION),
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
