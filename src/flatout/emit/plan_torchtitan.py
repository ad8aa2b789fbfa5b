"""Write a launch script for torchtitan. Option names: torchtitan 0.3.0, `torchtitan/config/configs.py`."""

from __future__ import annotations

from flatout.emit.plan_heading import script, torchrun_words
from flatout.records.plan import Layout
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "torchtitan 0.3.0"
# Name in Flatout's catalogue -> module and config in torchtitan's registry.
MODELS = {
    "llama3-8b": ("llama3", "llama3_8b"),
    "llama3-70b": ("llama3", "llama3_70b"),
    "llama3.1-405b": ("llama3", "llama3_405b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
}
_CHOSEN = ('"${MODULE:?name a module of torchtitan}"', '"${CONFIG:?name one of its configs}"')


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    module, config = MODELS.get(job.workload.name, _CHOSEN)
    groups = [
        " ".join([*torchrun_words(job), "-m torchtitan.train"]),
        f"--module {module} --config {config}",
        *(f"--{name} {value}" if value else f"--{name}" for name, value in settings(job).items()),
    ]
    # A subcommand of tyro comes after all options of the parser that it belongs to: added arguments precede it.
    subcommand = f"activation-checkpoint:{job.layout.recompute}"
    text = script(job, TARGET, notes, {}, groups, after_arguments=(subcommand,))
    return (Emitted(path="torchtitan_plan.sh", text=text, notes=notes),)


def settings(job: PlannedJob) -> dict[str, str]:
    """Return option -> value; the value of a switch is empty."""
    layout = job.layout
    is_piped = layout.pp > 1
    is_sharded = layout.zero >= 1
    sequences_per_replica = layout.micro_batch * layout.num_micro_batches
    group = _shard_degree(layout) if is_sharded else 1
    options = {
        "training.local_batch_size": str(sequences_per_replica if is_piped else layout.micro_batch),
        "training.global_batch_size": str(job.global_batch),
        "training.seq_len": str(job.seq),
        "training.steps": "20",
        "parallelism.data_parallel_replicate_degree": str(layout.dp // group),
        "parallelism.data_parallel_shard_degree": str(group),
        "parallelism.tensor_parallel_degree": str(layout.tp),
        "parallelism.pipeline_parallel_degree": str(layout.pp),
        "parallelism.context_parallel_degree": str(layout.cp),
    }
    if is_sharded:
        options["parallelism.fsdp_reshard_after_forward"] = "always" if layout.zero >= 3 else "never"
    if layout.tp > 1 and not layout.sequence_parallel:
        options["parallelism.no_enable_sequence_parallel"] = ""
    if job.workload.num_experts:
        options["parallelism.expert_parallel_degree"] = str(layout.ep)
    if is_piped:
        options |= _pipeline(job)
    if is_piped or layout.ep > 1:
        options["training.disable_cuda_graphs"] = ""  # torchtitan refuses them with a pipeline, and with most EP
    if layout.offload:
        options["training.enable_cpu_offload"] = ""
    if job.precision == "fp32":
        options["training.mixed_precision_param"] = "float32"
    return options


def _pipeline(job: PlannedJob) -> dict[str, str]:
    """Return the options of the pipeline."""
    layout = job.layout
    chunks_per_stage = 2 if layout.schedule == "zero-bubble" else layout.vpp
    layers_per_chunk = max(1, -(-job.workload.num_layers // (layout.pp * chunks_per_stage)))
    return {
        "parallelism.pipeline_parallel_schedule": _schedule(job),
        "parallelism.pipeline_parallel_microbatch_size": str(layout.micro_batch),
        "parallelism.pipeline_parallel_layers_per_stage": str(layers_per_chunk),
        "parallelism.pipeline_parallel_first_stage_less_layers": "0",
        "parallelism.pipeline_parallel_last_stage_less_layers": "0",
    }


def _shard_degree(layout: Layout) -> int:
    """Return the number of data-parallel ranks that states are sharded over; torchtitan adds those of CP."""
    group = layout.shard // layout.cp if layout.shard else layout.dp
    return group if group and layout.dp % group == 0 else layout.dp


def _schedule(job: PlannedJob) -> str:
    if job.layout.vpp > 1:
        return "Interleaved1F1B"
    return {"gpipe": "GPipe", "zero-bubble": "ZBVZeroBubble"}.get(job.layout.schedule, "1F1B")


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the plan that torchtitan has no option for."""
    layout = job.layout
    has_other_groups = bool(layout.shard) and _shard_degree(layout) * layout.cp != layout.shard
    offloaded = "parameters and gradients go with it" if layout.zero else "without FSDP it offloads nothing"
    notes = {
        f"torchtitan 0.3.0 has no config for {job.workload.name}: set MODULE and CONFIG to one of the same size": (
            job.workload.name not in MODELS
        ),
        f"torchtitan has no ZeRO-{layout.zero}: FSDP that keeps parameters after forward shards gradients too and "
        "gathers once per micro-batch": layout.zero in (1, 2),
        f"groups of {layout.shard} ranks that shard are not multiples of CP: all replicas shard": has_other_groups,
        f"torchtitan does not offload the optimizer alone: {offloaded}": layout.offload,
        "torch's zero-bubble schedules need two chunks per stage: ZBVZeroBubble with two in place of one chunk; "
        "torch.compile must be off": layout.schedule == "zero-bubble" and layout.pp > 1,
        f"{job.precision} is not an option of torchtitan 0.3.0 but part of a config: this trains in bf16": (
            job.precision in ("fp8", "fp4", "fp16")
        ),
    }
    return tuple(note for note, applies in notes.items() if applies)
