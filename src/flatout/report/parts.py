"""The labels and meanings of a step's parts, and their rounding, the same in all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.records.diagnosis import PART_NAMES

PART_LABELS: Mapping[str, str] = {
    "compute": "compute",
    "transfer": "transfer",
    "wait": "wait",
    "bubble": "bubble",
    "communication_unsplit": "communication (unsplit)",
    "memory_copy": "memory copy",
    "data_loading": "data loading",
    "checkpoint": "checkpoint",
    "allocator": "allocator",
    "host_sync": "host sync",
    "host_launch": "host launch",
    "launch_latency": "launch latency",
    "unattributed": "unattributed",
}

PART_MEANINGS: Mapping[str, str] = {
    "compute": "A compute kernel runs; communication that overlaps it is hidden and costs nothing.",
    "transfer": "Only communication runs; all ranks that take part have arrived, and data moves.",
    "wait": "Only communication runs, waiting for a rank that has not arrived yet; or a GPU idles while another GPU of"
    " its process works.",
    "bubble": "A pipeline stage idles for as long as an ideal schedule of this shape requires.",
    "communication_unsplit": "Only communication runs; without the other ranks' traces, transfer and wait are unknown.",
    "memory_copy": "Only copies or memory sets run on the device.",
    "data_loading": "The device idles while the host waits for the next batch.",
    "checkpoint": "The device idles while the host saves the model.",
    "allocator": "The device idles while the host allocates or frees device memory.",
    "host_sync": "The device idles because a synchronising call let its queue run empty.",
    "host_launch": "The device idles while the host prepares its next work (Python, operators, launch calls).",
    "launch_latency": "The device idles although its next work has been launched: launch latency.",
    "unattributed": "The trace does not show what the device or the host did.",
}

SAFETY_MEANINGS: Mapping[str, str] = {
    "exact": "the same computation; at most, sums are added in a different order",
    "rounding": "different kernels or lower precision: numbers change in their last digits",
    "semantic": "what is trained changes",
}

BEFORE_WINDOW = "before_window"


def part_label(part: str) -> str:
    """Return the label of a part. A blamed part can also be `before_window`."""
    if part == BEFORE_WINDOW:
        return "late before the recording"
    return PART_LABELS.get(part, part.replace("_", " "))


def part_values(parts_s: Mapping[str, float]) -> tuple[float, ...]:
    """Return the seconds of all parts in the order of `PART_NAMES`; negative rounding noise becomes 0."""
    return tuple(max(0.0, parts_s.get(name, 0.0)) for name in PART_NAMES)


def rounded_shares(values: Sequence[float], units: int) -> list[int]:
    """Return integers in proportion to the values that sum to `units`, by the largest-remainder method."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [value / total * units for value in values]
    whole = [int(value) for value in exact]
    by_remainder = sorted(range(len(values)), key=lambda index: whole[index] - exact[index])
    for index in by_remainder[: units - sum(whole)]:
        whole[index] += 1
    return whole
