"""What `flatout watch` exchanges: the labels of a job's metrics, and the request to its exporter."""

from __future__ import annotations

import msgspec


class JobLabels(msgspec.Struct, frozen=True, kw_only=True):
    """The labels that each metric of a job has. Host names are masked if the user asked for it."""

    job: str
    job_id: str  # from Slurm, Kubernetes or Ray; empty: the scheduler gave none
    host: str


class ExporterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an exporter serves, and where."""

    ledger: str
    state: str  # the folder of the run, with one folder of heartbeats per attempt
    address: str
    port: int  # 0: any free port
    labels: JobLabels
    promised_step_s: float | None = None  # from the tuning, see `records.expectation`
    num_starts: int = 0  # times that this exporter was started before
