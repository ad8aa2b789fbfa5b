"""Turn a plan's request into the context of its search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.catalog.targets import target_named, targets
from flatout.errors import UsageError
from flatout.plan.adapters import trained_parameters
from flatout.plan.clusters import cluster as read_cluster
from flatout.plan.fabrics import CLUSTERS_OWN, FabricRequest, with_fabric
from flatout.plan.fits import SAFE
from flatout.plan.inputs import PRECISIONS
from flatout.plan.layouts import TrainingSpec
from flatout.plan.model_names import executed_file, workload
from flatout.plan.optimizers import OPTIMIZERS
from flatout.plan.run_layout import software_of
from flatout.plan.run_row import RunRow
from flatout.plan.search_context import SearchContext
from flatout.plan.shipped import shipped
from flatout.plan.targets import ANY
from flatout.plan.training import BASE_BYTES
from flatout.plan_pipeline.calibration import calibrated
from flatout.records.plan import FULL_TRAINING, ClusterSpec, Software, Training, Workload

GRADIENT_BYTES = {"fp32": 4.0, "bf16": 2.0}  # by the value of --gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One training run to plan. `fixed` holds texts such as `tp=8`."""

    model: str
    cluster: str
    global_batch: int = 1024
    seq: int = 4096
    document: int = 0
    images: int = 0
    precision: str = "bf16"
    fixed: tuple[str, ...] = ()
    calibrate: Path | None = None
    risk: float = SAFE  # probability of running out of memory below which layouts are offered
    target: str = ANY
    training: Training = FULL_TRAINING
    fabric: FabricRequest = CLUSTERS_OWN


def requested_training(
    *,
    optimizer: str,
    lora_rank: int,
    lora_targets: str,
    base_bits: int,
    freeze: Sequence[str],
    gradients: str | None = None,
    is_pure_bf16: bool = False,
) -> Training:
    """Return the training that the options describe. `lora_targets` and `freeze` may name several, with commas."""
    return Training(
        optimizer=optimizer,
        lora_rank=lora_rank,
        lora_targets=tuple(name.strip() for name in lora_targets.split(",") if name.strip()),
        base_bits=base_bits,
        frozen=tuple(part for text in freeze for part in text.split(",") if part),
        gradients=gradients or ("bf16" if is_pure_bf16 else "fp32"),
        is_pure_bf16=is_pure_bf16,
    )


def requested_fabric(
    fabric: str | None, oversubscription: float | None, leaf_nodes: int | None, torus: str | None
) -> FabricRequest:
    """Return the network that the options describe."""
    return FabricRequest(fabric=fabric, oversubscription=oversubscription, leaf_nodes=leaf_nodes, torus=torus)


def search_context(request: PlanRequest, note: Callable[[str], object]) -> SearchContext:
    """Read the model, the cluster and the measurements.

    `note` is called with a message about each unused input, and before one of the user's files is executed.

    Raises UsageError for an unknown model, cluster or precision, and InputError for a file that cannot be used.
    """
    _check_target(request.target)
    named_cluster, matmul_share = read_cluster(request.cluster)
    cluster = with_fabric(named_cluster, request.fabric)
    _check_precision(request.precision, cluster)
    if (file := executed_file(request.model)) is not None:
        note(
            f"note: `--model` executes `{file}` as you, with all that you may do: plan only with a file that you trust"
        )
    _check_number_types(request)
    shape = workload(request.model)
    _check_images(request.images, shape, note)
    spec = TrainingSpec(
        workload=shape,
        cluster=cluster,
        global_batch=request.global_batch,
        seq=request.seq,
        document=request.document,
        images=request.images,
        training=_checked_training(request.training, shape),
        splits_experts=any(text.partition("=")[0] == "etp" for text in request.fixed),
    )
    context = SearchContext(
        spec=spec,
        precision=request.precision,
        matmul_share=matmul_share,
        software=_software(request.training, request.target),
        calibration=shipped(),
        risk=request.risk,
        target=request.target,
    )
    if request.calibrate is None:
        return context
    return calibrated(context, request.calibrate, request.fixed, note)


def _software(training: Training, target: str) -> Software:
    """Return what the target's framework does in a step; for any framework, what most current ones do."""
    software = Software()
    if target != ANY:
        framework = target_named(target)
        usual = software_of(RunRow(framework.columns))
        software = msgspec.structs.replace(usual, **framework.software)
    gradient_bytes = GRADIENT_BYTES[training.gradients]
    return msgspec.structs.replace(software, gradient_bytes=gradient_bytes, held_gradient_bytes=gradient_bytes)


def _check_number_types(request: PlanRequest) -> None:
    training = request.training
    if training.gradients not in GRADIENT_BYTES:
        raise UsageError(f"--gradients must be {' or '.join(GRADIENT_BYTES)}, but is `{training.gradients}`")
    if request.precision != "bf16" and training.is_pure_bf16:
        raise UsageError(
            f"--pure-bf16 is for training in bf16, but --precision is {request.precision}", hint="remove one of the two"
        )
    if training.is_pure_bf16 and training.gradients != "bf16":
        raise UsageError("--pure-bf16 keeps gradients in bf16, but --gradients is fp32", hint="remove one of the two")
    if request.precision in ("fp16", "fp32") and training.gradients == "bf16":
        raise UsageError(
            f"--gradients bf16 is for training in bf16, fp8 or fp4, but --precision is {request.precision}",
            hint="remove --gradients",
        )


def _checked_training(training: Training, shape: Workload) -> Training:
    """Return the training. Raise UsageError if its options contradict each other, or the model lacks what they name."""
    if training.optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer must be one of {', '.join(OPTIMIZERS)}, but is `{training.optimizer}`")
    if training.base_bits not in (16, *BASE_BYTES):
        raise UsageError(f"--base-bits must be 16, 8 or 4, but is {training.base_bits}")
    if not training.lora_rank and (training.base_bits != 16 or training.lora_targets != FULL_TRAINING.lora_targets):
        name = "--base-bits" if training.base_bits != 16 else "--lora-targets"
        raise UsageError(f"{name} is for adapters, which need --lora-rank", hint=f"--lora-rank 16 {name} ...")
    if training.lora_rank and training.frozen:
        raise UsageError("--freeze is for training without adapters: with --lora-rank, all of the model is frozen")
    trained_parameters(shape, training)
    return training


def _check_images(images: int, shape: Workload, note: Callable[[str], object]) -> None:
    """Raise UsageError for images without a vision tower; say that a plan without images has none."""
    has_vision = any(tower.name == "vision" for tower in shape.towers)
    if images and not has_vision:
        raise UsageError(
            f"--images is for models with a vision tower, but `{shape.name}` has none", hint="remove --images"
        )
    if has_vision and not images:
        note("note: the step has no images, so the vision tower takes no time: --images N gives those of a sequence")


def _check_target(target: str) -> None:
    names = [each.name for each in targets()]
    if target not in (*names, ANY):
        raise UsageError(
            f"`--for` must be one of {', '.join(names)} or {ANY}, but is `{target}`",
            hint=f"--for {ANY} plans layouts that at least one of them can run",
        )


def _check_precision(precision: str, cluster: ClusterSpec) -> None:
    if precision not in PRECISIONS:
        raise UsageError(f"--precision must be one of {', '.join(PRECISIONS)}, but is `{precision}`")
    supported = [name for name in PRECISIONS if name.partition("-")[0] in cluster.peak_flops_per_s]
    if precision not in supported:
        fallback = next((name for name in ("bf16", "fp16") if name in supported), "fp32")
        raise UsageError(
            f"`--precision` must be a type that the GPU supports, but {cluster.gpu} has no {precision}",
            hint=f"--precision {fallback}; it has: {', '.join(supported)}",
        )
