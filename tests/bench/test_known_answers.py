"""A wrong result is found, however quick it is: kernels wrong in many ways, and right ones that pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flatout.probe.ceilings import copy, launch_rate, matmul
from flatout.probe.ceilings.matmul import wrong_entries, wrong_product

CPU = torch.device("cpu")


def operands(dtype: torch.dtype, size: int = 256, k: int = 256) -> tuple[Any, Any, Any]:
    """Return a (size, k), b (k, size) and their product; a large k makes long sums, a large size only takes time."""
    generator = torch.Generator().manual_seed(7)
    a = (torch.rand((size, k), generator=generator) - 0.5).to(dtype)
    b = (torch.rand((k, size), generator=generator) - 0.5).to(dtype)
    return a, b, torch.mm(a, b)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_right_product_is_right(name: str, dtype: torch.dtype) -> None:
    for size, k in ((64, 64), (256, 256), (256, 1024)):
        assert wrong_product(torch, *operands(dtype, size, k), name) is None


def spoiled(c: Any, how: Callable[[Any], None]) -> Any:
    c = c.clone()
    how(c)
    return c


def a_tile_of_zeros(c: Any) -> None:
    c[64:80, 128:144] = 0


def one_row_not_written(c: Any) -> None:
    c[17] = float("nan")


def swapped_columns(c: Any) -> None:
    c[:, [3, 4]] = c[:, [4, 3]]


def a_little_off_everywhere(c: Any) -> None:
    c *= 1.05


@pytest.mark.parametrize("how", [a_tile_of_zeros, one_row_not_written, swapped_columns, a_little_off_everywhere])
@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_wrong_product_is_found(name: str, dtype: torch.dtype, how: Callable[[Any], None]) -> None:
    a, b, c = operands(dtype)
    assert wrong_product(torch, a, b, spoiled(c, how), name) is not None


def test_a_product_over_a_part_of_k_is_found() -> None:
    """As of a kernel that leaves out the last hundredth of its inner loop."""
    a, b, _ = operands(torch.bfloat16, k=1024)
    assert wrong_product(torch, a, b, torch.mm(a[:, :1014], b[:1014]), "bf16") is not None


def test_a_lower_precision_than_was_asked_for_is_found() -> None:
    a, b, _ = operands(torch.float32, k=1024)
    assert wrong_product(torch, a, b, torch.mm(a.bfloat16(), b.bfloat16()).float(), "fp32") is not None


def test_entries_are_compared_without_torch_too() -> None:
    random = np.random.default_rng(1)
    a, b = random.random((16, 64)) - 0.5, random.random((16, 64)) - 0.5
    right = (a * b).sum(axis=1)
    assert wrong_entries(a, b, right, "fp32") is None
    right[3] += 0.01
    assert wrong_entries(a, b, right, "fp32") is not None


def test_kernels_that_do_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (product,) = (matmul.torch_benchmarks(torch, CPU, who="first", shapes=((64, 64, 64),)),)
    first = next(iter(product))
    assert first.check() is None
    monkeypatch.setattr(torch, "mm", lambda *_, **__: None)
    assert first.check() is not None
    for case in copy.torch_benchmarks(torch, CPU, who="first", array_bytes=1 << 16, threads=1):
        assert case.check() is None
        monkeypatch.setattr(torch, "add", lambda *_, **__: None)
        assert case.check() is not None
        monkeypatch.undo()
    memory = copy.memcpy_benchmark(who="first", array_bytes=1 << 16, threads=3)
    assert memory.check() is None
    monkeypatch.setattr(np, "copyto", lambda *_: None)
    assert memory.check() is not None
    monkeypatch.undo()
    dispatch = launch_rate.torch_benchmark(torch, CPU)
    assert dispatch.check() is None
    monkeypatch.setattr(torch.Tensor, "add_", lambda self, _: self)
    assert dispatch.check() == "0 of 200 calls were carried out"


def test_operands_of_all_shapes_lie_in_the_same_memory() -> None:
    made = matmul.Operands(torch, CPU, ((64, 32, 16), (32, 64, 128)))
    a, b, c = made.of("fp32", (64, 32, 16))
    assert (a.shape, b.shape, c.shape) == ((64, 16), (16, 32), (64, 32))
    again = made.of("tf32", (32, 64, 128))
    assert [one.data_ptr() for one in again] == [one.data_ptr() for one in (a, b, c)]
    assert -0.5 <= a.min() < -0.4
    assert 0.4 < a.max() <= 0.5
    assert not torch.equal(a.flatten()[:512], b.flatten()[:512])
    assert made.of("bf16", (64, 32, 16))[2].data_ptr() == made.of("fp8", (64, 32, 16))[2].data_ptr()


def test_fp8_operands_are_as_its_kernels_want_them_and_the_product_is_judged() -> None:
    """On a CPU the same operator as on a GPU, which is stricter: b by columns, whole multiples of 16, fp32 scales."""
    a, b, c = matmul.Operands(torch, CPU, ((96, 160, 128),)).of("fp8", (96, 160, 128))
    assert (a.dtype, c.dtype) == (torch.float8_e4m3fn, torch.bfloat16)
    assert (b.shape, b.stride()) == ((128, 160), (1, 128))
    scale = torch.ones(())
    torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, out=c)
    assert wrong_product(torch, a, b, c, "fp8") is None
    assert torch.allclose(c.float(), a.float() @ b.float(), atol=0.02)
    for how in (a_tile_of_zeros, one_row_not_written, a_little_off_everywhere):
        assert wrong_product(torch, a, b, spoiled(c, how), "fp8") is not None


def truncated(x: Any) -> Any:
    """As tensor cores take tf32: the last 13 bits of fp32 are cut off."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("seed", range(4))
def test_tf32_may_cut_off_and_fp32_may_not(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.rand((1024, 1024), generator=generator) - 0.5 for _ in range(2))
    c = truncated(a) @ truncated(b)
    assert wrong_product(torch, a, b, c, "tf32") is None
    assert wrong_product(torch, a, b, c, "fp32") is not None


def test_a_small_gpu_gets_the_shapes_that_fit() -> None:
    assert matmul.fitting(matmul.GPU_SHAPES, 80e9) == matmul.GPU_SHAPES
    assert matmul.fitting(matmul.GPU_SHAPES, 8e9) == (*matmul.GPU_SHAPES[:4], matmul.GPU_SHAPES[6])
    assert matmul.fitting(matmul.GPU_SHAPES, 1e8) == matmul.GPU_SHAPES[:1]
