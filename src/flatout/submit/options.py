"""The options of `flatout submit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    """How `flatout run` keeps the queued job alive; with the defaults, the job is not wrapped in `flatout run`."""

    max_restarts: int = 0
    checkpoint_folder: Path | None = None
    checkpoint: Path | None = None
    resume_arguments: tuple[str, ...] = ()
    ledger: Path | None = None

    def run_arguments(self, num_gpus: int) -> tuple[str, ...]:
        """Return the options for `flatout run`. `num_gpus` is the job's number of GPUs; 0 if unknown."""
        arguments: list[str] = []
        if self.max_restarts:
            arguments += ["--max-restarts", str(self.max_restarts)]
        if self.checkpoint_folder is not None:
            arguments += ["--checkpoint-folder", str(self.checkpoint_folder)]
        if self.checkpoint is not None:
            arguments += ["--checkpoint", str(self.checkpoint)]
        arguments += [f"--resume-arg={argument}" for argument in self.resume_arguments]
        if self.ledger is not None:
            arguments += ["--ledger", str(self.ledger)]
            if num_gpus:  # NVML sees only the GPUs of the first node
                arguments += ["--gpus", str(num_gpus)]
        return tuple(arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What each pod asks of its node on Kubernetes, as typed."""

    nodes: Path | None = None  # what the nodes can allocate
    cpus: float | None = None
    memory: str | None = None
    shm: str | None = None  # size of /dev/shm
    network: tuple[str, ...] = ()  # resources, e.g. rdma/hca=8
    gpu_type: str | None = None
    gpu_memory_gb: float | None = None  # at least
    topology: str | None = None  # node label, `preferred:LABEL` or `none`


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """The options of one submission. None: not requested, or not yet determined."""

    command: tuple[str, ...]
    config: Path | None = None  # a tuned.toml
    has_canary: bool = False  # one job tries the changes before the others
    plan: Path | None = None
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None
    deadline_s: float | None = None
    can_resume: bool = False
    keep: KeepOptions = field(default_factory=KeepOptions)
    name: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    sbatch_options: str | None = None
    image: str | None = None
    queue: str | None = None
    pods: PodOptions = field(default_factory=PodOptions)
    data_set: str | None = None  # nodes that hold a copy of it are preferred
    out: Path | None = None
