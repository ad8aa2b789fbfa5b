"""Convert the kernel's CPU lists (`0-27,56`) and masks (`00ff,ffffffff`) to sets of numbers, and back."""

from __future__ import annotations


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse `0-3,8` into {0, 1, 2, 3, 8}. Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not 0 <= start <= end < 1 << 16:
            raise ValueError(f"`{part}` is not a range of CPUs")
        cpus.update(range(start, end + 1))
    return frozenset(cpus)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """Parse `00000001,80000000` into {31, 32}: words of 32 bits, the highest first."""
    words = text.strip().split(",")
    mask = int("".join(word.zfill(8) for word in words), 16)
    return frozenset(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def cpu_list_text(cpus: frozenset[int]) -> str:
    """Write {0, 1, 2, 3, 8} as `0-3,8`."""
    ranges: list[list[int]] = []  # first and last of each
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)
