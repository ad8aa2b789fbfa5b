"""A DeepSpeed configuration and its launch line. Names of keys: DeepSpeed 0.19.8, `deepspeed/runtime/config.py` and the
files that it reads its parts with.
"""

from __future__ import annotations

import json

from flatout.emit.plan_heading import gpus_per_node, num_nodes, script
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "DeepSpeed 0.19.8"


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    words = [f"deepspeed --num_gpus={gpus_per_node(job)}"]
    if num_nodes(job) > 1:
        words = [f'deepspeed --hostfile="${{HOSTFILE:-hostfile}}" --num_nodes={num_nodes(job)}']
    groups = [f"{words[0]} --num_gpus={gpus_per_node(job)}" if num_nodes(job) > 1 else words[0]]
    groups.append('"${TRAIN:?set TRAIN to your script}" --deepspeed --deepspeed_config deepspeed_plan.json')
    # The launcher starts the ranks of all nodes itself.
    text = script(job, TARGET, notes, {}, groups)
    text = "".join(line for line in text.splitlines(keepends=True) if "HEAD_NODE" not in line)
    configuration = json.dumps(settings(job), indent=2) + "\n"
    return (
        Emitted(path="deepspeed_plan.json", text=configuration),
        Emitted(path="deepspeed_plan.sh", text=text, notes=notes),
    )


def settings(job: PlannedJob) -> dict[str, object]:
    """The configuration."""
    layout = job.layout
    zero: dict[str, object] = {
        "stage": layout.zero,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    if layout.offload and layout.zero:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.shard and layout.zero >= 3:
        zero["zero_hpz_partition_size"] = layout.shard
    found: dict[str, object] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro_batches,
        "steps_per_print": 10,
        "zero_optimization": zero,
    }
    if job.precision in ("bf16", "fp8", "fp4"):
        found["bf16"] = {"enabled": True}
    elif job.precision == "fp16":
        found["fp16"] = {"enabled": True}
    if layout.tp > 1 and layout.pp == 1:
        found["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.pp > 1:
        every = 1 if layout.recompute == "full" else 0
        found["pipeline"] = {"stages": layout.pp, "partition": "best", "activation_checkpoint_interval": every}
    if layout.cp > 1:
        found["sequence_parallel_size"] = layout.cp
    if layout.recompute == "full":
        found["activation_checkpointing"] = {"partition_activations": layout.tp > 1}
    return found


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """What DeepSpeed has no key for, or wants in the script."""
    layout, notes = job.layout, []
    if layout.pp > 1:
        notes.append(
            f"pipeline stages are the script's: wrap the model as PipelineModule(layers=..., num_stages={layout.pp}, "
            f"activation_checkpoint_interval={1 if layout.recompute == 'full' else 0})"
        )
        if layout.zero >= 2:
            notes.append(f"DeepSpeed's pipeline does not go with ZeRO-{layout.zero}: use --fix zero=1")
        if layout.vpp > 1:
            notes.append(
                f"DeepSpeed has no interleaved schedule: {layout.vpp} chunks a stage become one, with more bubble"
            )
        if layout.schedule == "zero-bubble":
            notes.append("DeepSpeed has no zero-bubble schedule: this runs 1F1B, whose bubble is longer than predicted")
        if layout.schedule == "gpipe":
            notes.append("DeepSpeed has no GPipe schedule: this runs 1F1B")
        if layout.tp > 1:
            notes.append(f"AutoTP does not go with a pipeline: TP {layout.tp} must come from the model itself (an mpu)")
    elif layout.sequence_parallel:
        notes.append("AutoTP has no sequence parallelism: norms are computed, and activations held, on every rank")
    if layout.cp > 1:
        notes.append(
            f"context parallelism {layout.cp} becomes Ulysses' all-to-all: {layout.cp} must divide a rank's heads, "
            "and the script must shard the sequence (UlyssesSPAttentionHF)"
        )
    if layout.ep > 1:
        notes.append(
            f"expert parallelism is the model's: build its MoE layers with deepspeed.moe.layer.MoE(ep_size={layout.ep})"
        )
    if layout.shard and layout.zero:
        held = "a second copy of the weights is cut (zero_hpz_partition_size)" if layout.zero >= 3 else "all shard"
        notes.append(
            f"groups of {layout.shard} ranks that shard all states are MiCS's, which the script sets up: {held}"
        )
    if layout.offload and not layout.zero:
        notes.append("DeepSpeed offloads with ZeRO only: the optimizer stays on the GPU")
    if layout.recompute == "selective":
        notes.append("selective recomputation is the model's: DeepSpeed checkpoints whole layers only")
    elif layout.recompute == "full" and layout.pp == 1:
        notes.append("full recomputation is the model's: call its gradient_checkpointing_enable()")
    if job.precision in ("fp8", "fp4"):
        notes.append(f"{job.precision} is the model's (Transformer Engine): this trains in bf16")
    return tuple(notes)
