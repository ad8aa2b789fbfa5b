"""Matrix products by operand type over a grid of shapes, with torch on a GPU or all cores, else with numpy.

Each product is checked in float64: entries drawn at random against their own dot product, and with torch the whole of
it against a random vector of signs (Freivalds, 1977: C x = A (B x)), which no wrong tile survives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.probe.ceilings.case import CannotMeasureError, Case, Who

GPU_SHAPES = (
    *((n, n, n) for n in (1024, 2048, 4096, 8192)),
    (8192, 28672, 8192),  # a feed-forward layer of a model with 70 billion parameters
    (8192, 8192, 28672),
    (16384, 4096, 4096),
)
CPU_SHAPES = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 1024))
# Compute capability from which the tensor cores have the type (CUDA C++ programming guide, table of capabilities).
NEEDS = {"fp32": (0, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}
_EPSILON = {"fp32": 2.0**-24, "tf32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-8}  # of the result
_NUM_ENTRIES = 256
CHECKED = f"{_NUM_ENTRIES} entries and a random vector, in float64"


def tolerance(dtype: str, k: int, exact: Any) -> Any:
    """How far an entry may be off, for operands even in (-0.5, 0.5), whose products have a mean square of 1/144.

    Rounding of the result (and of partial sums, where a GPU may keep them in the result's type), of sums in fp32, and
    of tf32's operands to 11 bits. An entry is about sqrt(k)/12 in size: what leaves out a hundredth of k is caught.
    """
    size = math.sqrt(k) / 12
    rounding = 8 * _EPSILON[dtype] * np.maximum(np.abs(exact), size)
    sums = 4 * _EPSILON["fp32"] * k / 12
    return rounding + sums + (8 * 2.0**-11 * size if dtype == "tf32" else 0.0)


def wrong_entries(a: Any, b: Any, c: Any, dtype: str) -> str | None:
    """`a` (entries, k), `b` (entries, k) and `c` (entries), all float64: rows, columns and what came out."""
    exact = np.einsum("ik,ik->i", a, b)
    off = np.abs(c - exact)
    bad = ~(off <= tolerance(dtype, a.shape[1], exact))
    if not bad.any():
        return None
    at = int(np.argmax(np.where(np.isnan(off), np.inf, off)))
    return f"{int(bad.sum())} of {len(c)} entries are wrong: {c[at]:.6g} where {exact[at]:.6g} is right"


def numpy_cases() -> Iterator[Case]:
    random = np.random.default_rng(1)
    for m, n, k in CPU_SHAPES:
        a = (random.random((m, k), np.float32) - 0.5).astype(np.float32)
        b = (random.random((k, n), np.float32) - 0.5).astype(np.float32)
        c = np.empty((m, n), np.float32)
        yield _numpy_case(a, b, c)


def _numpy_case(a: Any, b: Any, c: Any) -> Case:
    (m, k), n = a.shape, b.shape[1]

    def check() -> str | None:
        c.fill(np.nan)
        np.matmul(a, b, out=c)
        i, j = np.random.default_rng(2).integers((m, n), size=(_NUM_ENTRIES, 2)).T
        return wrong_entries(a[i].astype(np.float64), b[:, j].T.astype(np.float64), c[i, j].astype(np.float64), "fp32")

    return Case(
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


def torch_cases(torch: Any, device: Any, *, who: Who, shapes: tuple[tuple[int, int, int], ...]) -> Iterator[Case]:
    """One operand type after the other, small shapes first. A type that the device lacks raises where it is tried."""
    for dtype in ("fp32", "bf16") if device.type == "cpu" else ("fp32", "tf32", "bf16", "fp16", "fp8"):
        for shape in shapes:
            yield _torch_case(torch, device, dtype, shape, who)


def lacks(torch: Any, device: Any) -> dict[str, str]:
    """Operand types that this device is not asked for, with the reason."""
    if device.type == "cpu":
        return {
            "matmul tf32": "a CPU has none",
            "matmul fp16": "no CPU is known to train with it",
            "matmul fp8": "a CPU has none",
        }
    if torch.version.hip:
        return {}
    have = torch.cuda.get_device_capability(device)
    return {
        f"matmul {dtype}": f"it needs compute capability {need[0]}.{need[1]}, and the GPU has {have[0]}.{have[1]}"
        for dtype, need in NEEDS.items()
        if have < need
    }


def _torch_case(torch: Any, device: Any, dtype: str, shape: tuple[int, int, int], who: Who) -> Case:
    m, n, k = shape
    made: dict[str, Any] = {}  # the operands, when first needed: a grid of them all at once may not fit

    def operands() -> tuple[Any, Any, Any]:
        if not made:
            if f"matmul {dtype}" in lacks(torch, device):
                raise CannotMeasureError(lacks(torch, device)[f"matmul {dtype}"])
            generator = torch.Generator(device=device).manual_seed(1)
            kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
            a = torch.rand((m, k), generator=generator, device=device).sub_(0.5)
            b = torch.rand((k, n), generator=generator, device=device).sub_(0.5)
            if dtype == "fp8":
                kind = torch.bfloat16
                a, b = a.to(torch.float8_e4m3fn), b.t().contiguous().to(torch.float8_e4m3fn).t()
                made["scale"] = torch.ones((), device=device)
            else:
                a, b = a.to(kind), b.to(kind)
            made["a"], made["b"], made["c"] = a, b, torch.empty((m, n), dtype=kind, device=device)
        return made["a"], made["b"], made["c"]

    def call() -> None:
        a, b, c = operands()
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        if dtype == "fp8":
            torch._scaled_mm(a, b, scale_a=made["scale"], scale_b=made["scale"], out_dtype=c.dtype, out=c)
        else:
            torch.mm(a, b, out=c)

    def check() -> str | None:
        a, b, c = operands()
        c.fill_(float("nan"))
        call()
        return wrong_product(torch, a, b, c, dtype)

    return Case(
        name="matmul",
        unit="FLOP/s",
        work=2.0 * m * n * k,
        call=call,
        check=check,
        checked=CHECKED,
        who=who,
        sync=_sync(torch, device),
        labels={"dtype": dtype, "shape": shape, "backend": "torch"},
        curve=f"matmul {dtype}",
    )


def wrong_product(torch: Any, a: Any, b: Any, c: Any, dtype: str) -> str | None:
    """What is wrong with c = a b, from its entries and from a random vector."""
    (m, k), n = a.shape, b.shape[1]
    i, j = np.random.default_rng(2).integers((m, n), size=(_NUM_ENTRIES, 2)).T
    rows, columns = torch.as_tensor(i, device=a.device), torch.as_tensor(j, device=a.device)
    # fp8 has no kernel for indexing: whole rows are taken after the types are widened.
    wide = torch.float32 if dtype == "fp8" else a.dtype
    found = wrong_entries(
        a.to(wide)[rows].double().cpu().numpy(),
        b.to(wide)[:, columns].t().double().cpu().numpy(),
        c[rows, columns].double().cpu().numpy(),
        dtype,
    )
    if found:
        return found
    generator = torch.Generator(device=a.device).manual_seed(3)
    signs = torch.randint(0, 2, (n, 1), generator=generator, device=a.device).double() * 2 - 1
    off = (c.double() @ signs - a.to(wide).double() @ (b.to(wide).double() @ signs)).abs().max().item()
    # A row's error is a sum of n entries' errors of either sign; of n/2 that are off by their whole size it would be
    # hundreds of times as much.
    most = math.sqrt(n) * float(tolerance(dtype, k, np.float64(0.0)))
    return None if off <= most else f"a row is off by {off:.4g} where rounding explains {most:.4g}"


def _sync(torch: Any, device: Any) -> Any:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
