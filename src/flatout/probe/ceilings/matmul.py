"""Matrix multiplication by operand type over a grid of shapes, with torch on a GPU or all cores, or with numpy.

Each result is checked in float64: random entries against their own dot product, and with torch also the whole matrix
against a random vector of signs (Freivalds, 1977: C x = A (B x)), which detects every wrong tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError, Who

GPU_SHAPES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192)),
    (8192, 28672, 8192),  # a feed-forward layer of a 70-billion-parameter model
    (8192, 8192, 28672),
    (16384, 4096, 4096),
)
CPU_SHAPES = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 1024))
# The lowest compute capability whose tensor cores have the type (CUDA C++ programming guide, table of capabilities).
NEEDS = {"fp32": (0, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}
_EPSILON = {"fp32": 2.0**-24, "tf32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-8}  # of the result
_NUM_ENTRIES = 256
_AT_ONCE = 1 << 25  # numbers that a check widens to float64
# Least duration of a GPU's repetition: a 5 ms burst can run at a clock that the power limit does not allow for long.
_GPU_SAMPLE_S = 0.05
CHECKED = f"{_NUM_ENTRIES} entries and a random vector, in float64"


def tolerance(dtype: str, k: int, exact: Any) -> Any:
    """Return the allowed error of an entry, for operands uniform in (-0.5, 0.5) (mean square of their products: 1/144).

    It covers rounding of the result (and of partial sums, if a GPU keeps them in the result's type), of sums in fp32,
    and of tf32's operands to 11 bits, which tensor cores truncate instead of rounding, so that an entry loses a share
    of its value. An entry's size is about sqrt(k)/12, so a kernel that skips 1 % of k is detected.
    """
    usual = np.maximum(np.abs(exact), math.sqrt(k) / 12)
    sums = 4 * _EPSILON["fp32"] * k / 12
    return 8 * _EPSILON[dtype] * usual + sums + (16 * 2.0**-11 * usual if dtype == "tf32" else 0.0)


def wrong_entries(a: Any, b: Any, c: Any, dtype: str) -> str | None:
    """Return the error in `c` (entries), checked against rows `a` and columns `b` (entries, k); all are float64."""
    exact = np.einsum("ik,ik->i", a, b)
    off = np.abs(c - exact)
    bad = ~(off <= tolerance(dtype, a.shape[1], exact))
    if not bad.any():
        return None
    at = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    return f"{int(bad.sum())} of {len(c)} entries are wrong: {c[at]:.6g} where {exact[at]:.6g} is right"


def numpy_benchmarks() -> Iterator[Benchmark]:
    random = np.random.default_rng(1)
    for m, n, k in CPU_SHAPES:
        a = (random.random((m, k), np.float32) - 0.5).astype(np.float32)
        b = (random.random((k, n), np.float32) - 0.5).astype(np.float32)
        c = np.empty((m, n), np.float32)
        yield _numpy_benchmark(a, b, c)


def _numpy_benchmark(a: Any, b: Any, c: Any) -> Benchmark:
    (m, k), n = a.shape, b.shape[1]

    def check() -> str | None:
        c.fill(np.nan)
        np.matmul(a, b, out=c)
        i, j = np.random.default_rng(2).integers((m, n), size=(_NUM_ENTRIES, 2)).T
        return wrong_entries(a[i].astype(np.float64), b[:, j].T.astype(np.float64), c[i, j].astype(np.float64), "fp32")

    return Benchmark(
        name="matmul",
        unit="FLOP/s",
        work=2.0 * m * n * k,
        call=lambda: _discard(np.matmul(a, b, out=c)),
        check=check,
        checked=f"{_NUM_ENTRIES} entries in float64",
        who="first",
        labels={"dtype": "fp32", "shape": (m, n, k), "backend": "numpy"},
        curve="matmul fp32",
    )


def _discard(_: Any) -> None:
    pass


def torch_benchmarks(
    torch: Any, device: Any, *, who: Who, shapes: tuple[tuple[int, int, int], ...]
) -> Iterator[Benchmark]:
    """Yield the benchmarks by operand type, small shapes first. A type that the device lacks raises when tried."""
    operands = Operands(torch, device, shapes)
    for dtype in ("fp32", "bf16") if device.type == "cpu" else ("fp32", "tf32", "bf16", "fp16", "fp8"):
        for shape in shapes:
            yield _torch_benchmark(torch, device, dtype, shape, who, operands)


def fitting(shapes: tuple[tuple[int, int, int], ...], free: float) -> tuple[tuple[int, int, int], ...]:
    """Return the shapes that fit into `free` bytes of a GPU.

    The operands of all types stay allocated, about 12 bytes per number (fp32, bf16, fp16, fp8), and other measurements
    need as much memory again.
    """
    return tuple(shape for shape in shapes if 12 * sum(_numbers(shape)) <= free / 2)


def _numbers(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the number of elements of a, of b and of the result."""
    m, n, k = shape
    return m * k, k * n, m * n


class Operands:
    """Random numbers and memory for the result, once per type: each shape uses the first elements that it needs.

    On a GPU, separate operands for each shape and type would take about 20 GB; these take 6 GB.
    """

    def __init__(self, torch: Any, device: Any, shapes: tuple[tuple[int, int, int], ...]) -> None:
        self._torch, self._device = torch, device
        self._most = [max(column) for column in zip(*map(_numbers, shapes), strict=True)]
        self._made: dict[Any, Any] = {}

    def of(self, dtype: str, shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
        """Return a (m, k), b (k, n) and c (m, n). For fp8, b is in column order, as required, and c is bf16."""
        torch, (m, n, k) = self._torch, shape
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": self._fp8()}.get(dtype, torch.float32)
        a, b = (
            self._flat(("operand", seed, kind), lambda seed=seed: self._random(seed, kind))[:count]
            for seed, count in ((1, m * k), (2, k * n))
        )
        result = torch.bfloat16 if dtype == "fp8" else kind
        c = self._flat(("product", result), lambda: torch.empty(self._most[2], dtype=result, device=self._device))[
            : m * n
        ]
        return a.view(m, k), b.view(n, k).t() if dtype == "fp8" else b.view(k, n), c.view(m, n)

    def _flat(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _random(self, seed: int, kind: Any) -> Any:
        """Return random numbers, uniform in (-0.5, 0.5)."""
        generator = self._torch.Generator(device=self._device).manual_seed(seed)
        count = self._most[seed - 1]
        return self._torch.rand(count, generator=generator, device=self._device).sub_(0.5).to(kind)

    def _fp8(self) -> Any:
        """Return the fp8 type; AMD's third generation has its own variant."""
        torch = self._torch
        is_variant = torch.version.hip and _architecture(torch, self._device).startswith("gfx94")
        return torch.float8_e4m3fnuz if is_variant else torch.float8_e4m3fn


def lacks(torch: Any, device: Any) -> dict[str, str]:
    """Return the operand types that are not measured on this device, and why."""
    if device.type == "cpu":
        return {
            "matmul tf32": "CPUs do not support it",
            "matmul fp16": "no CPU is known to be used for training with it",
            "matmul fp8": "CPUs do not support it",
        }
    if torch.version.hip:
        found = {"matmul tf32": "on AMD a library's settings decide whether it is used"}
        architecture = _architecture(torch, device)
        if architecture.startswith("gfx9") and architecture < "gfx942":
            found["matmul fp8"] = f"it needs an MI300 or later, and the GPU is {architecture}"
        return found
    have = torch.cuda.get_device_capability(device)
    return {
        f"matmul {dtype}": f"it needs compute capability {need[0]}.{need[1]}, and the GPU has {have[0]}.{have[1]}"
        for dtype, need in NEEDS.items()
        if have < need
    }


def _architecture(torch: Any, device: Any) -> str:
    """Return the architecture of an AMD GPU, such as `gfx90a`."""
    return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]


def _torch_benchmark(
    torch: Any, device: Any, dtype: str, shape: tuple[int, int, int], who: Who, operands: Operands
) -> Benchmark:
    m, n, k = shape
    made: list[Any] = []  # a, b, c, and fp8's scale, created when first needed

    def prepared() -> list[Any]:
        if not made:
            if f"matmul {dtype}" in lacks(torch, device):
                raise CannotMeasureError(lacks(torch, device)[f"matmul {dtype}"])
            made.extend([*operands.of(dtype, shape), torch.ones((), device=device)])
        return made

    def call() -> None:
        a, b, c, scale = made or prepared()
        if dtype == "fp8":  # sums in fp32, as in a backward pass: fast accumulation would be faster but less precise
            torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, out=c)
            return
        # Small multiplications are limited by the host's time, so a setting that is already right is not set again.
        if device.type == "cuda" and dtype in ("fp32", "tf32"):
            settings = torch.backends.cuda.matmul
            if settings.allow_tf32 != (dtype == "tf32"):
                settings.allow_tf32 = dtype == "tf32"
        torch.mm(a, b, out=c)

    def check() -> str | None:
        a, b, c, _ = prepared()
        c.fill_(float("nan"))
        call()
        return wrong_product(torch, a, b, c, dtype)

    return Benchmark(
        name="matmul",
        unit="FLOP/s",
        work=2.0 * m * n * k,
        call=call,
        check=check,
        checked=CHECKED,
        who=who,
        sync=_sync(torch, device),
        sample_s=_GPU_SAMPLE_S if device.type == "cuda" else 0.0,
        labels={"dtype": dtype, "shape": shape, "backend": "torch"},
        curve=f"matmul {dtype}",
    )


def wrong_product(torch: Any, a: Any, b: Any, c: Any, dtype: str) -> str | None:
    """Return the error in c = a b, found from its entries and from a random vector; None if it is correct."""
    (m, k), n = a.shape, b.shape[1]
    i, j = np.random.default_rng(2).integers((m, n), size=(_NUM_ENTRIES, 2)).T
    rows, columns = torch.as_tensor(i, device=a.device), torch.as_tensor(j, device=a.device)

    def taken(matrix: Any, which: Any) -> Any:
        """Return rows of the matrix; fp8 has no kernel for indexing, so its bytes are indexed."""
        if matrix.element_size() == 1:
            return matrix.view(torch.uint8)[which].view(matrix.dtype).float()
        return matrix[which]

    found = wrong_entries(
        taken(a, rows).double().cpu().numpy(),
        taken(b.t(), columns).double().cpu().numpy(),
        c[rows, columns].double().cpu().numpy(),
        dtype,
    )
    if found:
        return found
    generator = torch.Generator(device=a.device).manual_seed(3)
    signs = torch.randint(0, 2, (n, 1), generator=generator, device=a.device).double() * 2 - 1
    off = (_times(torch, c, signs) - _times(torch, a, _times(torch, b, signs))).abs().max().item()
    # A row's error is the sum of n entry errors of either sign; if n/2 entries were entirely wrong, it would be
    # hundreds of times larger.
    most = math.sqrt(n) * float(tolerance(dtype, k, np.float64(0.0)))
    return None if off <= most else f"a row is off by {off:.4g} where rounding explains {most:.4g}"


def _times(torch: Any, matrix: Any, vector: Any) -> Any:
    """Return `matrix @ vector` in float64, some rows at a time: the whole matrix would need 8 bytes per element."""
    rows = max(1, _AT_ONCE // matrix.shape[1])
    return torch.cat([part.float().double() @ vector for part in matrix.split(rows)])


def _sync(torch: Any, device: Any) -> Any:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
