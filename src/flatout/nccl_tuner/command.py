"""Run `flatout tune nccl` from its options to its result: the ranks, the transport, the work, and what is written.

Nothing is printed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.change.transport import with_transport
from flatout.errors import InputError, OutputError, UsageError
from flatout.input_records import read_record
from flatout.nccl_tuner.candidates import find_space
from flatout.nccl_tuner.measure import Say
from flatout.nccl_tuner.plan import SimulatedFabric
from flatout.nccl_tuner.tuning import TABLE_FILE, TuningRequest, check_ranks, tune_nccl
from flatout.nccl_tuner.work import standard_work, work_of
from flatout.probe.ceilings.start import about_machine, given_rank
from flatout.probe.nvml import Gpus
from flatout.records.change import JobFacts
from flatout.records.nccl_tuning import CollectiveWork, NcclTuning
from flatout.records.recording import GpuUse, HostUse
from flatout.report.files import check_new, write_new
from flatout.report.json import enveloped_json

SCHEMA, VERSION = "flatout/nccl-tuning", 1
RESULT_FILE = "nccl.json"
BACKENDS = ("nccl", "gloo")
_GLOO_LARGEST_BYTES = 16 << 20
_GLOO_RANKS = 2


class NcclCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `flatout tune nccl` without a command to judge the result by."""

    folder: Path
    time_s: float
    recording: Path | None = None
    transport: str | None = None
    backend: str | None = None
    fabric: Path | None = None
    num_ranks: int | None = None
    uses_plugin: bool = True
    force: bool = False

    def check(self) -> None:
        """Raise UsageError or OutputError before anything is measured."""
        if self.backend is not None and self.backend not in BACKENDS:
            raise UsageError(f"`--backend` must be one of {', '.join(BACKENDS)}, but got {self.backend}")
        if self.backend is not None and self.fabric is not None:
            raise UsageError("`--backend` and `--fabric` exclude each other: a simulated fabric is a backend")
        if self.transport is not None:
            find_space(self.transport)
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f"`{self.folder}` is not a folder", hint="pass another --out")
        for name in (TABLE_FILE, RESULT_FILE):
            check_new(self.folder / name, force=self.force)

    def run(self, say: Say, environment: Mapping[str, str] = os.environ) -> NcclTuning | None:
        """Measure and choose; None in a process that does not report."""
        request = self._request(environment)
        gpus = Gpus() if request.backend == "nccl" else None
        xids = gpus.xids() if gpus is not None and gpus.problem is None else None
        tuning = tune_nccl(request, say, environment, xids)
        return tuning if request.reports else None

    def write(self, tuning: NcclTuning, typed_command: list[str]) -> list[str]:
        """Write the result and return the lines to print."""
        path = self.folder / RESULT_FILE
        write_new(path, enveloped_json(SCHEMA, VERSION, typed_command, tuning), force=self.force)
        lines = [f"wrote {tuning.table_file}"] if tuning.table_file is not None else []
        return [*lines, f"wrote {path}"]

    def _request(self, environment: Mapping[str, str]) -> TuningRequest:
        fabric = read_fabric(self.fabric) if self.fabric is not None else None
        backend = "simulated" if fabric is not None else self.backend or "nccl"
        given = given_rank(environment)
        num_ranks = _num_ranks(self.num_ranks, backend, environment)
        transport = self._transport(fabric, backend, environment)
        find_space(transport)
        return TuningRequest(
            backend=backend,
            transport=transport,
            num_ranks=num_ranks,
            work=self._work(num_ranks, backend),
            folder=self.folder,
            time_s=self.time_s,
            fabric=fabric,
            uses_plugin=self.uses_plugin,
            reports=given is None or given["RANK"] == "0",
            force=self.force,
        )

    def _transport(self, fabric: SimulatedFabric | None, backend: str, environment: Mapping[str, str]) -> str:
        if self.transport is not None:
            return self.transport
        if fabric is not None:
            return fabric.transport
        return "gloo" if backend == "gloo" else found_transport(environment)

    def _work(self, num_ranks: int, backend: str) -> CollectiveWork:
        if self.recording is None:
            if backend == "gloo":
                return standard_work(num_ranks, largest_bytes=_GLOO_LARGEST_BYTES)
            return standard_work(num_ranks)
        from flatout.diagnosis_pipeline import diagnose_paths

        return work_of(diagnose_paths([self.recording]).job, num_ranks, f"the recording {self.recording}")


def read_fabric(path: Path) -> SimulatedFabric:
    """Read the file of a simulated fabric. Raises InputError."""
    fabric = read_record(path, SimulatedFabric, hint="docs/how-to/tune-nccl.md has an example of a simulated fabric")
    if fabric.law_of("default", "default", "all_reduce") is None:
        raise InputError(f"{path} has no law for the default", hint="add a [[law]] without a candidate")
    if any(law.latency_s <= 0 or law.bytes_per_s <= 0 for law in fabric.law) or not 0 <= fabric.noise <= 1:
        raise InputError(f"{path}: latency_s and bytes_per_s must be above 0, and noise from 0 to 1")
    return fabric


def found_transport(environment: Mapping[str, str]) -> str:
    """Return the transport of this machine's ranks. Raises UsageError if it is uncertain."""
    if environment.get("FI_PROVIDER", "").lower() == "efa":
        return "efa"
    num_hosts = 1
    local_size, size = environment.get("LOCAL_WORLD_SIZE", ""), environment.get("WORLD_SIZE", "")
    if local_size.isdecimal() and size.isdecimal() and int(local_size) > 0:
        num_hosts = max(1, int(size) // int(local_size))
    facts = JobFacts(backend="nccl", num_hosts=num_hosts, environment=dict(environment))
    transport = with_transport(facts, [_this_host()]).transport
    if transport is None:
        raise UsageError(
            "it is unknown whether the GPUs of this machine are joined by NVLink or by PCIe",
            hint="pass --transport nvlink or --transport pcie",
        )
    return transport


def _this_host() -> HostUse:
    """Return how the GPUs of this machine reach each other."""
    gpus = [GpuUse(index=gpu["index"], peer_path=gpu.get("peer_path")) for gpu in Gpus().facts()]
    return HostUse(hostname=os.uname().nodename, num_samples=0, cores_allowed=0.0, gpus=tuple(gpus))


def _num_ranks(requested: int | None, backend: str, environment: Mapping[str, str]) -> int:
    given = given_rank(environment)
    if given is not None:
        return int(given["WORLD_SIZE"])
    if backend != "nccl":
        num_ranks = requested or _GLOO_RANKS
        check_ranks(backend, num_ranks, 0)
        return num_ranks
    num_gpus = about_machine().num_gpus
    num_ranks = requested if requested is not None else max(2, num_gpus)
    check_ranks(backend, num_ranks, num_gpus)
    return num_ranks
