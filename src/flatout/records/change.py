"""A setting that can be changed from outside a job, how it is set, and its effect on the training.

A `Knob` is a setting; a `Change` is a knob with one value. `change/` has the catalogue, `inside/` applies the patches,
`trial/` and `emit/` apply the rest. `JobFacts` has all facts about a job and its machine that the catalogue needs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.cores import cores_of_rank

Safety = Literal["exact", "rounding", "semantic"]
SAFETIES: tuple[Safety, ...] = ("exact", "rounding", "semantic")  # each also allows those before it

MAX_WAITING_SHARE = 0.5  # CPU share of the time in which batches are made; below it, a loader mostly waits

Gate = Literal["loss", "data", "memory"]
Scalar = bool | int | float | str
Relation = Literal["is", "is not", "at least", "at most"]


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A modification that `inside/` makes in each training process, named as in `change.patches`."""

    name: str
    parameters: dict[str, Scalar] = {}


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the user's script, each with its value: `("--batch-size=16",)`, `("-b", "16")`."""

    words: tuple[tuple[str, ...], ...]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the job: `JobFacts.<fact> <relation> <value>`. It is not met if the fact is unknown."""

    fact: str
    relation: Relation
    value: Scalar


class ValidRange(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a knob: numbers between two bounds, or some words. Empty: the knob can only be switched on."""

    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # kebab-case, unique
    family: str  # the file in `change/`
    summary: str  # one line, without a full stop
    safety: Safety
    # The most that it can save, as a share of the cost of a finding or of the time in a part of the step.
    answers: dict[str, float] = {}
    reduces: dict[str, float] = {}
    saves_memory: float = 0.0  # share of the peak, at most; only used to order changes if memory is the objective
    needs: tuple[Need, ...] = ()
    valid: ValidRange = ValidRange()
    variables: tuple[str, ...] = ()  # that it may set beyond those of its changes in the catalogue: measured for a job
    excludes: tuple[str, ...] = ()  # knobs; exclusion applies in both directions
    requires: tuple[str, ...] = ()  # knobs that must be set too, by the script or by us
    combines_with: tuple[str, ...] = ()  # knobs that are worth trying together with it
    only_if_it_pays: bool = False  # not tried where a prediction says that it gains nothing: it costs accuracy
    gates: tuple[Gate, ...] = ("loss",)  # checks that a trial must pass before its speed counts
    doc: str  # effect, cost, and when it is wrong
    source: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A knob with one value. It has at least one of the four ways to apply it."""

    name: str  # `dataloader-workers=15`, or the knob's name if it has no value
    knob: Knob
    value: str = ""
    environment: dict[str, str] = {}
    launch: dict[str, tuple[str, ...]] = {}  # by launcher, arguments to add to the launcher's own
    patch: Patch | None = None
    argument: Argument | None = None
    predicted_speedup: float | None = None  # upper bound; None if nothing was predicted
    predicted_from: tuple[str, ...] = ()  # the findings or parts that determine the bound

    @property
    def family(self) -> str:
        return self.knob.family

    @property
    def safety(self) -> Safety:
        return self.knob.safety


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Compatible changes, merged: the settings of one trial. Without changes it is the baseline."""

    changes: tuple[Change, ...] = ()
    environment: dict[str, str] = {}
    launch: dict[str, tuple[str, ...]] = {}
    patches: tuple[Patch, ...] = ()  # at most one per name
    arguments: tuple[Argument, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes) or "baseline"

    @property
    def safety(self) -> Safety:
        """Return the safety of the least safe change."""
        return max((change.safety for change in self.changes), key=SAFETIES.index, default="exact")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(sorted({gate for change in self.changes for gate in change.knob.gates}))


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a job and its machine. None: unknown, so changes that need the fact are not proposed."""

    num_ranks: int | None = None
    ranks_per_host: int | None = None
    num_hosts: int | None = None
    launcher: str | None = None  # torchrun, srun, python, accelerate, ...
    device: str | None = None  # cuda | cpu
    gpu_arch: float | None = None  # compute capability: 9.0 is Hopper
    torch: str | None = None  # versions: "2.11.0"
    nccl: str | None = None
    python: str | None = None
    cuda: str | None = None  # that torch was built for
    driver: str | None = None  # of the GPU
    # Communication: the transport at its slowest place, and the size of the collectives that carry most bytes.
    backend: str | None = None  # nccl | gloo
    transport: str | None = None  # socket | infiniband | nvlink | pcie | shared_memory
    collective_bytes: int | None = None
    gradient_bytes: int | None = None  # per step, over all buckets
    gradient_element_bytes: int | None = None  # 4: fp32
    embedding_bytes: int | None = None  # the largest embedding whose dense gradients DDP exchanges
    embedding_rows_used: float | None = None  # share of its rows that a step of all ranks uses
    codec_ns: dict[str, float] | None = None  # per byte of gradients, by compression, as measured on this machine
    best_prefetch_depth: int | None = None  # units that FSDP2 gathers ahead, by the trace's gathers and compute
    best_bucket_mib: int | None = None  # of DDP, by the trace's layers and the cost of its all-reduces
    best_first_bucket_mib: int | None = None  # the same of the first bucket, with the others as they are
    # The host, within the limits of the control group.
    cores_allowed: float | None = None  # per host
    cores_busy_by_others: float | None = None  # of those allowed, on the host with most
    cores_busy_by_job: float | None = None  # the same, with the job's own processes: its ranks and their workers
    num_numa_nodes: int | None = None
    collects_automatically: bool | None = None  # Python decides when to collect garbage, not the script
    threads_per_rank: int | None = None  # torch.get_num_threads()
    script_sets_threads: bool | None = None  # by torch.set_num_threads, which overrides the environment
    cores_of_machine: int | None = None  # of which the job may be allowed only some
    runs_onnx: bool | None = None  # its calls are runs of sessions of ONNX Runtime
    session_threads: int | None = None  # as the script sets them; 0: as many as the machine has cores
    session_is_optimized: bool | None = None  # all optimizations of the graph are on
    session_provider: str | None = None  # of ONNX Runtime, that computes first
    other_providers: str | None = None  # that this ONNX Runtime has besides that and the CPU's, with commas
    has_onnx: bool | None = None  # the packages onnx and onnxruntime can be imported
    cpu_has_bf16: bool | None = None  # has instructions for matrices of bf16
    # Features that the script already uses.
    wrapper: str | None = None  # ddp | fsdp2
    passes_per_step: int | None = None  # forward and backward passes between two optimizer steps
    only_infers: bool | None = None  # its steps are calls of a model without gradients
    limited_batch: int | None = None  # samples of a call, where the user limits its latency, and no own knob sets them
    find_unused_parameters: bool | None = None
    loader_workers: int | None = None
    loader_prefetch: int | None = None
    loader_pins_memory: bool | None = None
    loader_has_persistent_workers: bool | None = None
    loader_start_method: str | None = None  # of its workers: fork | spawn | forkserver
    loader_pickled_bytes: int | None = None  # for each worker that is spawned: the data set, mostly
    loader_pickled_s: float | None = None  # to pickle them for one worker; unpickling takes about as long
    loader_sampler_s: float | None = None  # until the first indices of an epoch, for which some samplers compute all
    loader_batches: int | None = None  # of one epoch, per rank
    loader_is_iterable: bool | None = None  # an IterableDataset: by default, each worker yields all samples
    loader_load: float | None = None  # seconds of waiting for batches without workers, per second of the rest of a step
    # The model of the loader, if its stages were timed.
    loader_pace_s: tuple[float, ...] = ()  # predicted seconds for a step's samples, by 0, 1, 2, ... workers
    loader_best_workers: int | None = None  # the fewest workers with which the training is predicted to be fastest
    loader_best_gain: float | None = None  # by them, predicted: training speed over the present one
    loader_limit: str | None = None  # what limits the present loader: `workers`, `cores`, `storage`, or `main process`
    loader_cpu_share: float | None = None  # CPU share of the time in which batches are made; low: waiting
    loader_draws: bool | None = None  # making a batch draws random numbers from its process's generators
    loader_keeps_state: bool | None = None  # making a batch changes the data set, or the data set knows the epoch
    loader_length_spread: float | None = None  # of the length to which batches are padded: deviation / mean
    loader_batch_tokens: int | None = None  # in a batch on average, with their padding
    loader_cause: str | None = None  # a `LoaderFinding`: why making batches takes its time
    loader_stage: str | None = None  # the stage of a sample that has most of the work
    loader_stage_share: float | None = None  # its share of the time to make a sample
    loader_watch_s: float | None = None  # time that the recorder adds to each of the first batches, to see these facts
    optimizer: str | None = None  # class name: AdamW
    optimizer_is_fused: bool | None = None
    optimizer_is_foreach: bool | None = None
    zero_grad_sets_to_none: bool | None = None
    has_convolutions: bool | None = None
    has_batch_norm: bool | None = None
    has_transformers: bool | None = None  # the model is from the transformers library
    # Packages that the job could import.
    has_torchao: bool | None = None
    has_transformer_engine: bool | None = None
    has_bitsandbytes: bool | None = None
    has_liger: bool | None = None
    has_xformers: bool | None = None
    is_autocast: bool | None = None
    is_compiled: bool | None = None
    is_deterministic: bool | None = None  # the script requests deterministic algorithms
    sets_own_seed: bool | None = None  # the script seeds torch, so a trial's seed has no effect on it
    reshards_after_forward: bool | None = None
    measured_collectives: dict[str, str] = {}  # variables that apply what was measured for its collectives
    environment: dict[str, str] = {}  # environment of the job at its start

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the number of steps in which the loader yields all of its batches once; None if unknown."""
        if self.loader_batches is None:
            return None
        return max(self.loader_batches // (self.passes_per_step or 1), 1)

    @property
    def loader_waits(self) -> bool:
        """Whether making a batch is known to be mostly waiting, as for network storage."""
        return self.loader_cpu_share is not None and self.loader_cpu_share < MAX_WAITING_SHARE

    @property
    def loader_is_stateless(self) -> bool:
        """Whether persistent workers are known to make the same batches as new workers."""
        return self.loader_draws is False and self.loader_keeps_state is False

    @property
    def ranks_on_host(self) -> int:
        """Return the ranks per host; all ranks if the hosts are unknown."""
        return self.ranks_per_host or self.num_ranks or 1

    @property
    def cores_per_rank(self) -> float | None:
        """Return the allowed cores per rank; None if they are unknown."""
        return self.cores_allowed / self.ranks_on_host if self.cores_allowed is not None else None

    @property
    def worker_cores(self) -> float | None:
        """Return the cores for the workers of a rank's loader: those that other programs leave, less one.

        One core is the training process's own. There is always one for a worker, which takes turns with the training
        if it must: what work can gain from cores that are busy is `cores_speedup`.
        """
        cores = self._cores_left
        return None if cores is None else max(cores - 1, 1.0)

    @property
    def cores_speedup(self) -> float | None:
        """Return how many times as fast the job's work on the cores could be at most, if it used all of them."""
        cores = self._cores_left
        if cores is None or not self.cores_busy_by_job:
            return None
        return max(cores * self.ranks_on_host / self.cores_busy_by_job, 1.0)

    def is_crowded_by(self, num_workers: int) -> bool:
        """Whether a rank and this number of workers compute on fewer cores than they are."""
        cores = self._cores_left
        return cores is not None and not self.loader_waits and num_workers + 1 > cores

    @property
    def _cores_left(self) -> float | None:
        if self.cores_allowed is None:
            return None
        return cores_of_rank(self.cores_allowed, self.ranks_on_host, self.cores_busy_by_others)
