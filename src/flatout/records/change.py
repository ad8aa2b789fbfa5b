"""One thing that can be set from outside a job, how it is set, and what it does to the training.

A `Knob` is what can be set; a `Change` is a knob at one value. `change/` has the catalogue, `inside/` applies the
patches, `trial/` and `emit/` the rest. `JobFacts` is all that the catalogue asks about a job and its machine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Safety = Literal["exact", "rounding", "semantic"]
SAFETIES: tuple[Safety, ...] = ("exact", "rounding", "semantic")  # each allows those before it

Gate = Literal["loss", "data", "memory"]
Scalar = bool | int | float | str
Relation = Literal["is", "is not", "at least", "at most"]


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What `inside/` does in each training process. Names and parameters are those of `change.patches`."""

    name: str
    parameters: dict[str, Scalar] = {}


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the user's own script, each with its value: `("--batch-size=16",)`, `("-b", "16")`."""

    words: tuple[tuple[str, ...], ...]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known and true of the job: `JobFacts.<fact> <relation> <value>`. An unknown fact is not met."""

    fact: str
    relation: Relation
    value: Scalar


class ValidRange(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a knob takes: numbers between two bounds, or some words. Empty: it has none, and is only on."""

    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # kebab-case, unique
    family: str  # the file in `change/`
    summary: str  # one line, without a full stop
    safety: Safety
    # What it can save at most, as a share of the cost of a finding, or of the time in a part of the step.
    answers: dict[str, float] = {}
    reduces: dict[str, float] = {}
    saves_memory: float = 0.0  # of the peak, at most; for their order alone, where memory is the objective
    needs: tuple[Need, ...] = ()
    valid: ValidRange = ValidRange()
    excludes: tuple[str, ...] = ()  # knobs; it holds in both directions
    requires: tuple[str, ...] = ()  # knobs that must be set too, by the script or by us
    combines_with: tuple[str, ...] = ()  # knobs that are worth trying together with it
    gates: tuple[Gate, ...] = ("loss",)  # what a trial must pass before its speed counts
    doc: str  # what it does, what it costs, when it is wrong
    source: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A knob at one value. At least one of the four ways to apply it is there."""

    name: str  # `dataloader-workers=15`, or the knob's name where it has no value
    knob: Knob
    value: str = ""
    environment: dict[str, str] = {}
    launch: dict[str, tuple[str, ...]] = {}  # by launcher, arguments to add to its own
    patch: Patch | None = None
    argument: Argument | None = None
    predicted_speedup: float | None = None  # an upper bound; None where nothing was predicted
    predicted_from: tuple[str, ...] = ()  # the findings or parts that the bound comes from

    @property
    def family(self) -> str:
        return self.knob.family

    @property
    def safety(self) -> Safety:
        return self.knob.safety


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that fit together, merged: what one trial applies. Without changes it is the baseline."""

    changes: tuple[Change, ...] = ()
    environment: dict[str, str] = {}
    launch: dict[str, tuple[str, ...]] = {}
    patches: tuple[Patch, ...] = ()  # one a name
    arguments: tuple[Argument, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes) or "baseline"

    @property
    def safety(self) -> Safety:
        """The least safe of its changes."""
        return max((change.safety for change in self.changes), key=SAFETIES.index, default="exact")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(sorted({gate for change in self.changes for gate in change.knob.gates}))


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a job and its machine. None: unknown, and what needs it is not proposed."""

    num_ranks: int | None = None
    ranks_per_host: int | None = None
    num_hosts: int | None = None
    launcher: str | None = None  # torchrun, srun, python, accelerate, ...
    device: str | None = None  # cuda | cpu
    gpu_arch: float | None = None  # compute capability: 9.0 is Hopper
    torch: str | None = None  # versions: "2.11.0"
    nccl: str | None = None
    # Communication: over what it goes, at the slowest place, and how large the collectives are that carry most bytes.
    backend: str | None = None  # nccl | gloo
    transport: str | None = None  # socket | infiniband | nvlink | pcie | shared_memory
    collective_bytes: int | None = None
    gradient_bytes: int | None = None  # of one step, all buckets
    gradient_element_bytes: int | None = None  # 4: fp32
    # The host, as the control group allows it.
    cores_allowed: float | None = None  # of one host
    num_numa_nodes: int | None = None
    threads_per_rank: int | None = None  # torch.get_num_threads()
    # What the script does already.
    wrapper: str | None = None  # ddp | fsdp2
    passes_per_step: int | None = None  # forward and backward passes between two optimizer steps
    find_unused_parameters: bool | None = None
    loader_workers: int | None = None
    loader_prefetch: int | None = None
    loader_pins_memory: bool | None = None
    loader_has_persistent_workers: bool | None = None
    optimizer: str | None = None  # class name: AdamW
    optimizer_is_fused: bool | None = None
    optimizer_is_foreach: bool | None = None
    zero_grad_sets_to_none: bool | None = None
    has_convolutions: bool | None = None
    has_batch_norm: bool | None = None
    has_transformers: bool | None = None  # a model of the transformers library
    is_autocast: bool | None = None
    is_compiled: bool | None = None
    is_deterministic: bool | None = None  # the script asks for deterministic algorithms
    reshards_after_forward: bool | None = None
    environment: dict[str, str] = {}  # that the job is started with

    @property
    def ranks_on_host(self) -> int:
        """The ranks of one host; all ranks if the hosts are unknown."""
        return self.ranks_per_host or self.num_ranks or 1

    @property
    def cores_per_rank(self) -> float | None:
        """The share of the allowed cores; None if these are unknown."""
        return self.cores_allowed / self.ranks_on_host if self.cores_allowed is not None else None
