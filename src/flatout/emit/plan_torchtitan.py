"""Write a launch script for torchtitan. Option names: main of 2026-08-21, `torchtitan/config/configs.py`.

Since release 0.3.0, the options of the batch have been renamed: they count tokens instead of sequences. The script
names the older options in a comment.
"""

from __future__ import annotations

from flatout.emit.plan_heading import script, torchrun_words
from flatout.records.plan import Layout, counts_ends
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "torchtitan (main of 2026-08-21)"
# Name in Flatout's catalogue -> module and config in torchtitan's registry.
MODELS = {
    "llama3-8b": ("llama3", "llama3_8b"),
    "llama3-70b": ("llama3", "llama3_70b"),
    "llama3.1-8b": ("llama3", "llama3_8b"),
    "llama3.1-70b": ("llama3", "llama3_70b"),
    "llama3.1-405b": ("llama3", "llama3_405b"),
    "qwen3-0.6b": ("qwen3", "qwen3_0_6b"),
    "qwen3-1.7b": ("qwen3", "qwen3_1_7b"),
    "qwen3-14b": ("qwen3", "qwen3_14b"),
    "qwen3-32b": ("qwen3", "qwen3_32b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
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
    text = script(job, TARGET, notes, {}, groups, after_arguments=(subcommand,), remark=_batch_of_older_release(job))
    return (Emitted(path="torchtitan_plan.sh", text=text, notes=notes),)


def _batch_of_older_release(job: PlannedJob) -> str:
    """Return a remark with the options of the batch as release 0.3.0 names them."""
    layout = job.layout
    local = layout.micro_batch * (layout.num_micro_batches if layout.pp > 1 else 1)
    words = f"--training.local_batch_size {local} --training.global_batch_size {job.global_batch}"
    words += f" --training.seq_len {job.seq}"
    if layout.pp > 1:
        words += f" --parallelism.pipeline_parallel_microbatch_size {layout.micro_batch}"
    return f"Release 0.3.0 names the batch's options differently: {words}"


def settings(job: PlannedJob) -> dict[str, str]:
    """Return option -> value; the value of a switch is empty."""
    layout = job.layout
    is_piped = layout.pp > 1
    is_sharded = layout.zero >= 1
    group = _shard_degree(layout) if is_sharded else 1
    options = {
        "training.num_tokens_per_microbatch_per_dp_rank": str(layout.micro_batch * job.seq),
        "training.num_tokens_per_train_step": str(job.global_batch * job.seq),
        "training.max_context_length": str(job.seq),
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
    if job.training.is_pure_bf16:
        options["training.dtype"] = "bfloat16"
    if job.precision == "fp32":
        options["training.mixed_precision_param"] = "float32"
    return options


def _pipeline(job: PlannedJob) -> dict[str, str]:
    """Return the options of the pipeline."""
    layout = job.layout
    layers_per_chunk = max(1, -(-job.workload.num_layers // (layout.pp * layout.vpp)))
    less_layers = str(int(counts_ends(job.workload.num_layers, layout.pp, layout.vpp)))
    return {
        "parallelism.pipeline_parallel_schedule": _schedule(job),
        "parallelism.num_pp_microbatches": str(layout.num_micro_batches),
        "parallelism.pipeline_parallel_layers_per_stage": str(layers_per_chunk),
        "parallelism.pipeline_parallel_first_stage_less_layers": less_layers,
        "parallelism.pipeline_parallel_last_stage_less_layers": less_layers,
    }


def _shard_degree(layout: Layout) -> int:
    """Return the number of data-parallel ranks that states are sharded over; torchtitan adds those of CP."""
    return layout.shard // layout.cp if layout.shard else layout.dp


def _schedule(job: PlannedJob) -> str:
    if job.layout.vpp > 1:
        return "Interleaved1F1B"
    return "GPipe" if job.layout.schedule == "gpipe" else "1F1B"


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the job that belongs in a config, which the user must choose."""
    notes = {
        f"torchtitan has no config for {job.workload.name}: set MODULE and CONFIG to one of the same size": (
            job.workload.name not in MODELS
        ),
        f"{job.precision} is not an option of torchtitan but part of a config (such as llama3_8b_mxfp8): with another "
        "config, this trains in bf16": job.precision in ("fp8", "fp4"),
    }
    return tuple(note for note, applies in notes.items() if applies)
