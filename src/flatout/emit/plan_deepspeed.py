"""Write a DeepSpeed configuration and its launch line. Key names: DeepSpeed 0.19.8 (main of 2026-08-22),
`docs/_pages/config-json.md`, `deepspeed/runtime/config.py` and the files that read its sections.
"""

from __future__ import annotations

import json

from flatout.emit.plan_heading import gpus_per_node, num_nodes, script
from flatout.records.plan import Layout
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "DeepSpeed 0.19.8"


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    launch = "deepspeed"
    if num_nodes(job) > 1:
        launch += f' --hostfile="${{HOSTFILE:-hostfile}}" --num_nodes={num_nodes(job)}'
    groups = [
        f"{launch} --num_gpus={gpus_per_node(job)}",
        '"${TRAIN:?set TRAIN to your script}" --deepspeed --deepspeed_config deepspeed_plan.json',
    ]
    # The launcher starts the ranks of all nodes itself.
    text = script(job, TARGET, notes, {}, groups, runs_on_each_node=False)
    configuration = json.dumps(settings(job), indent=2) + "\n"
    return (
        Emitted(path="deepspeed_plan.json", text=configuration),
        Emitted(path="deepspeed_plan.sh", text=text, notes=notes),
    )


def settings(job: PlannedJob) -> dict[str, object]:
    """Return the configuration."""
    layout = job.layout
    configuration: dict[str, object] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro_batches,
        "steps_per_print": 10,
        "zero_optimization": _zero(layout),
    }
    if job.training.is_pure_bf16:
        configuration["bf16"] = {
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        }
    elif job.precision in ("bf16", "fp8", "fp4"):
        configuration["bf16"] = {"enabled": True}
    elif job.precision == "fp16":
        configuration["fp16"] = {"enabled": True}
    if job.training.gradients == "bf16":
        configuration["data_types"] = {"grad_accum_dtype": "bf16"}
    if layout.pp > 1:
        configuration["pipeline"] = {
            "stages": layout.pp,
            "partition": "best",
            "activation_checkpoint_interval": _checkpoint_interval(layout),
        }
    elif layout.tp > 1:
        configuration["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.ep > 1:
        configuration["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
    if layout.cp > 1:
        configuration["sequence_parallel_size"] = layout.cp
    if layout.recompute == "full":
        configuration["activation_checkpointing"] = {"partition_activations": layout.tp > 1}
    return configuration


def _zero(layout: Layout) -> dict[str, object]:
    zero: dict[str, object] = {
        # Only ZeRO's optimizer is offloaded; a single replica has one with a single shard.
        "stage": max(layout.zero, 1) if layout.offload else layout.zero,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    if layout.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.shard:
        zero["mics_shard_size"] = layout.shard
    return zero


def _checkpoint_interval(layout: Layout) -> int:
    """Return the number of layers of a pipeline stage per recomputed block; 0: activations are never recomputed."""
    return 1 if layout.recompute == "full" else 0


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the plan that belongs in the user's script."""
    layout = job.layout
    notes = {
        f"pipeline stages are up to the script: wrap the model as PipelineModule(layers=..., num_stages={layout.pp}, "
        f"activation_checkpoint_interval={_checkpoint_interval(layout)})": layout.pp > 1,
        f"context parallelism {layout.cp} becomes Ulysses' all-to-all: the script must shard the sequence "
        "(UlyssesSPAttentionHF); the predicted time is that of a ring": layout.cp > 1,
        f"groups of {layout.shard} ranks that shard need deepspeed.zero.MiCS_Init around the model's creation": (
            layout.shard > 0
        ),
        "full recomputation is up to the model: call its gradient_checkpointing_enable()": (
            layout.recompute == "full" and layout.pp == 1
        ),
        f"{job.precision} needs Transformer Engine in the model: this trains in bf16": job.precision in ("fp8", "fp4"),
    }
    return tuple(note for note, applies in notes.items() if applies)
