"""Memory copy and STREAM's triad, on a GPU or with all cores; bytes are counted as STREAM does (McCalpin, 1995).

A copy reads and writes: 2 bytes of traffic per byte. A triad `a = b + s c` reads two arrays and writes one: 3. Arrays
are larger than any cache; reads of a CPU that fill a cache line before it is written are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from flatout.probe.ceilings.benchmark import Benchmark, Who

CHECKED = "every element"


def torch_benchmarks(
    torch: Any, device: Any, *, who: Who, array_bytes: int, threads: int | None
) -> Iterator[Benchmark]:
    count = array_bytes // 4
    made: dict[str, Any] = {}

    def arrays() -> tuple[Any, Any, Any]:
        if not made:
            index = torch.arange(count, device=device, dtype=torch.int32)
            made["b"] = (index % 1021).float()
            made["c"] = (index % 1019).float()
            made["a"] = torch.empty(count, device=device)
        return made["a"], made["b"], made["c"]

    def copy() -> None:
        a, b, _ = arrays()
        a.copy_(b)

    def triad() -> None:
        a, b, c = arrays()
        torch.add(b, c, alpha=3.0, out=a)

    def check_copy() -> str | None:
        a, b, _ = arrays()
        a.fill_(float("nan"))
        copy()
        return None if torch.equal(a, b) else f"{int((a != b).sum())} of {count} elements differ from what was copied"

    def check_triad() -> str | None:
        a, b, c = arrays()
        a.fill_(float("nan"))
        triad()
        bad = int((a != b.double().add_(c, alpha=3.0)).sum())  # small whole numbers: exact in fp32
        return f"{bad} of {count} elements are wrong" if bad else None

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    labels = {"dtype": "fp32", "size": array_bytes, "backend": "torch", "threads": threads}
    kinds = [("memory_copy", 2, copy, check_copy)] if device.type == "cuda" else []  # on a CPU, memcpy is faster
    for name, factor, call, check in (*kinds, ("memory_triad", 3, triad, check_triad)):
        yield Benchmark(
            name=name,
            unit="B/s",
            work=float(factor * count * 4),
            call=call,
            check=check,
            checked=CHECKED,
            who=who,
            sync=sync,
            labels=labels,
        )


def memcpy_benchmark(*, who: Who, array_bytes: int, threads: int) -> Benchmark:
    """Return the benchmark of the C library's memcpy, one part per thread: numpy calls it; it bypasses the caches."""
    count = array_bytes // 4
    made: dict[str, Any] = {}

    def parts() -> list[tuple[Any, Any]]:
        if not made:
            made["b"] = (np.arange(count, dtype=np.int32) % 1021).astype(np.float32)
            made["a"] = np.zeros_like(made["b"])
            made["pool"] = ThreadPoolExecutor(threads)
        return list(zip(np.array_split(made["a"], threads), np.array_split(made["b"], threads), strict=True))

    def call() -> None:
        pieces = parts()
        list(made["pool"].map(lambda piece: np.copyto(*piece), pieces))

    def check() -> str | None:
        parts()
        made["a"].fill(np.nan)
        call()
        return None if np.array_equal(made["a"], made["b"]) else "elements differ from what was copied"

    return Benchmark(
        name="memory_copy",
        unit="B/s",
        work=2.0 * count * 4,
        call=call,
        check=check,
        checked=CHECKED,
        who=who,
        labels={"dtype": "fp32", "size": array_bytes, "backend": "memcpy", "threads": threads},
    )
