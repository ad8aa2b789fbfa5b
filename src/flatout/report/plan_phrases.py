"""The words for a plan's parts and layouts, the same in text and on the page."""

from __future__ import annotations

from flatout.records.plan import Layout

# Part of the step: (label, class of its colour, what it is).
STEP_PARTS: dict[str, tuple[str, str, str]] = {
    "compute": ("compute", "p0", "matrix products, attention and what memory bounds, with what is computed again"),
    "tensor_parallel": ("TP communication", "p1", "collectives inside a layer that nothing hides"),
    "context_parallel": ("CP communication", "p10", "keys and values around the ring, beyond what attention hides"),
    "expert_parallel": ("EP communication", "p5", "tokens to their experts and back"),
    "pipeline_send": ("PP sends", "p9", "activations and gradients between stages that nothing hides"),
    "bubble": ("pipeline bubble", "p11", "filling and draining the pipeline"),
    "imbalance": ("stage imbalance", "p3", "waiting for the slowest stage: uneven layers, and the logits"),
    "data_parallel": ("DP communication", "p2", "gradients reduced and parameters gathered, beyond what compute hides"),
    "optimizer": ("optimizer", "p6", "Adam's pass over the states that this rank owns"),
    "offload": ("offload", "p4", "states and activations to the host's memory and back"),
    "jitter": ("jitter", "p12", "ranks that wait for the latest of many"),
}
MEMORY_PARTS: dict[str, tuple[str, str, str]] = {
    "weights": ("weights", "p0", "in the type of compute, and with ZeRO-3 two layers gathered"),
    "gradients": ("gradients", "p1", "as they are accumulated"),
    "optimizer": ("optimizer", "p6", "fp32 weights and Adam's two moments"),
    "activations": ("activations", "p5", "of all micro-batches in flight"),
    "logits": ("logits", "p9", "on the last stage: 16 bits, fp32, and their gradient"),
    "overhead": ("overhead", "p11", "the CUDA context, NCCL's buffers, and what the allocator loses"),
}
UNNAMED = ("p7", "p4", "p8")  # for a part that this version has no words for
SENSITIVITY: dict[str, str] = {
    "network_bandwidth": "the network's bandwidth",
    "nvlink_bandwidth": "NVLink's bandwidth",
    "memory_bandwidth": "the memory's bandwidth",
    "matmul_rate": "the matrix rate",
}


def step_part(name: str) -> tuple[str, str, str]:
    """Label, class and meaning of a part of the step."""
    return STEP_PARTS.get(name) or (name.replace("_", " "), UNNAMED[len(name) % len(UNNAMED)], "")


def memory_part(name: str) -> tuple[str, str, str]:
    """Label, class and meaning of a part of the memory."""
    return MEMORY_PARTS.get(name) or (name.replace("_", " "), UNNAMED[len(name) % len(UNNAMED)], "")


def layout_words(layout: Layout) -> list[str]:
    """The layout in full words, one each."""
    words = []
    if layout.tp > 1:
        words.append(
            f"tensor parallelism {layout.tp}" + (" with sequence parallelism" if layout.sequence_parallel else "")
        )
    if layout.pp > 1:
        chunks = f" of {layout.vpp} chunks each" if layout.vpp > 1 else ""
        words.append(f"{layout.pp} pipeline stages{chunks} ({schedule_name(layout)})")
    if layout.cp > 1:
        words.append(f"context parallelism {layout.cp}")
    if layout.ep > 1:
        words.append(f"expert parallelism {layout.ep}")
    sharding = {1: " with ZeRO-1", 2: " with ZeRO-2", 3: " with ZeRO-3 (FSDP)"}.get(layout.zero, "")
    if layout.shard and sharding:
        sharding += f" in groups of {layout.shard} ranks"
    words.append(f"{layout.dp} replicas{sharding}" if layout.dp > 1 else f"one replica{sharding}")
    if layout.offload:
        words.append("the optimizer in the host's memory")
    words.append(f"micro-batches of {layout.micro_batch}, {layout.num_micro_batches} a step")
    words.append({"none": "nothing recomputed"}.get(layout.recompute, f"{layout.recompute} recomputation"))
    return words


def schedule_name(layout: Layout) -> str:
    """As the papers call it."""
    if layout.vpp > 1:
        return "interleaved 1F1B"
    return {"gpipe": "GPipe", "1f1b": "1F1B", "zero-bubble": "zero-bubble"}.get(layout.schedule, layout.schedule)


def difference(one: Layout, best: Layout) -> str:
    """The dials that differ, DP and accumulation left out since they follow."""
    changed = [
        f"{name} {getattr(one, name)}"
        for name in one.__struct_fields__
        if name not in ("dp", "num_micro_batches") and getattr(one, name) != getattr(best, name)
    ]
    return ", ".join(changed).replace("_", " ").replace("True", "on").replace("False", "off")
