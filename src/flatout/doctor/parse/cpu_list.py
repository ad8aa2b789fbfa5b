"""CPU lists (`0-27,56`) and masks (`00ff,ffffffff`) of the kernel -> sets of numbers."""

from __future__ import annotations


def parse_cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` -> {0, 1, 2, 3, 8}. Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not 0 <= start <= end < 1 << 16:
            raise ValueError(f"`{part}` is no range of CPUs")
        cpus.update(range(start, end + 1))
    return frozenset(cpus)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """`00000001,80000000` -> {31, 32}: words of 32 bits, the highest first."""
    words = text.strip().split(",")
    mask = int("".join(word.zfill(8) for word in words), 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def cpu_list_text(cpus: frozenset[int]) -> str:
    ranges: list[str] = []
    ordered = sorted(cpus)
    start = previous = None
    for cpu in [*ordered, None]:
        if previous is not None and cpu == previous + 1:
            previous = cpu
            continue
        if start is not None:
            ranges.append(f"{start}" if start == previous else f"{start}-{previous}")
        start = previous = cpu
    return ",".join(ranges)
