"""Labels and descriptions for the parts and the layouts of a plan, shared by the text and the page."""

from __future__ import annotations

from flatout.records.plan import Layout

# Part of the step: (label, colour class, description).
STEP_PARTS: dict[str, tuple[str, str, str]] = {
    "compute": ("compute", "p0", "matrix multiplications, attention and memory-bound kernels, including recomputation"),
    "tensor_parallel": ("TP communication", "p1", "exposed collectives inside a layer"),
    "context_parallel": (
        "CP communication",
        "p10",
        "exposed exchange of keys and values around the ring",
    ),
    "expert_parallel": ("EP communication", "p5", "sending tokens to their experts and back"),
    "pipeline_send": ("PP sends", "p9", "exposed transfer of activations and gradients between stages"),
    "bubble": ("pipeline bubble", "p11", "filling and draining the pipeline"),
    "imbalance": ("stage imbalance", "p3", "waiting for the slowest stage: uneven layers, and the logits"),
    "data_parallel": (
        "DP communication",
        "p2",
        "exposed gradient reduction and parameter gathering",
    ),
    "optimizer": ("optimizer", "p6", "the update of this rank's weights and states"),
    "offload": ("offload", "p4", "moving states and activations to host memory and back"),
    "jitter": ("jitter", "p12", "waiting for the slowest rank"),
}
MEMORY_PARTS: dict[str, tuple[str, str, str]] = {
    "weights": ("weights", "p0", "in the compute precision; with ZeRO-3, including two gathered layers"),
    "gradients": ("gradients", "p1", "accumulated over micro-batches"),
    "optimizer": ("optimizer", "p6", "fp32 master weights, if there are any, and the optimizer's moments"),
    "activations": ("activations", "p5", "for all micro-batches in flight"),
    "logits": ("logits", "p9", "on the last stage: 16 bits, fp32, and their gradient"),
    "overhead": ("overhead", "p11", "the CUDA context, NCCL's buffers, and fragmentation"),
}
UNNAMED = ("p7", "p4", "p8")  # colours of parts that this version has no label for
SENSITIVITY: dict[str, str] = {
    "network_bandwidth": "the network bandwidth",
    "nvlink_bandwidth": "the NVLink bandwidth",
    "memory_bandwidth": "the memory bandwidth",
    "matmul_rate": "the matrix multiplication rate",
}


def step_part(name: str) -> tuple[str, str, str]:
    """Return the label, colour class and description of a part of the step."""
    return STEP_PARTS.get(name) or (name.replace("_", " "), UNNAMED[len(name) % len(UNNAMED)], "")


def memory_part(name: str) -> tuple[str, str, str]:
    """Return the label, colour class and description of a part of the memory."""
    return MEMORY_PARTS.get(name) or (name.replace("_", " "), UNNAMED[len(name) % len(UNNAMED)], "")


def layout_words(layout: Layout) -> list[str]:
    """Describe the layout in phrases, one per degree or option."""
    words = []
    if layout.tp > 1:
        sequence = " with sequence parallelism" if layout.sequence_parallel else ""
        words.append(f"tensor parallelism {layout.tp}{sequence}")
    if layout.pp > 1:
        chunks = f" of {layout.vpp} chunks each" if layout.vpp > 1 else ""
        words.append(f"{layout.pp} pipeline stages{chunks} ({schedule_name(layout)})")
    if layout.cp > 1:
        words.append(f"context parallelism {layout.cp}")
    if layout.ep > 1:
        words.append(f"expert parallelism {layout.ep}")
    if layout.etp > 1:
        words.append(f"expert tensor parallelism {layout.etp}")
    sharding = {1: " with ZeRO-1", 2: " with ZeRO-2", 3: " with ZeRO-3 (FSDP)"}.get(layout.zero, "")
    if layout.shard and sharding:
        sharding += f" in groups of {layout.shard} ranks"
    words.append(f"{layout.dp} replicas{sharding}" if layout.dp > 1 else f"one replica{sharding}")
    if layout.offload:
        words.append("optimizer states in host memory")
    words.append(f"micro-batches of {layout.micro_batch}, {layout.num_micro_batches} per step")
    words.append("no recomputation" if layout.recompute == "none" else f"{layout.recompute} recomputation")
    return words


def schedule_name(layout: Layout) -> str:
    """Return the pipeline schedule's name in the papers."""
    if layout.vpp > 1:
        return "interleaved 1F1B"
    return {"gpipe": "GPipe", "1f1b": "1F1B", "zero-bubble": "zero-bubble"}.get(layout.schedule, layout.schedule)


def difference(layout: Layout, best: Layout) -> str:
    """List the parameters that differ, except DP and accumulation, which follow from the others."""
    changes = []
    for name in layout.__struct_fields__:
        value = getattr(layout, name)
        if name in ("dp", "num_micro_batches") or value == getattr(best, name):
            continue
        if isinstance(value, bool):
            value = "on" if value else "off"
        changes.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(changes)
