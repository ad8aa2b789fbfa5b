"""What a GPU is asked for, by its memory and its generation: the list of cases, which is made without one."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from tests.bench.test_warming import Alone

from flatout.probe.ceilings import matmul, worker
from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError
from flatout.probe.ceilings.current_benchmark import CurrentBenchmark
from flatout.probe.ceilings.raw import BenchSettings

GPU = torch.device("cuda", 0)


def asked(
    monkeypatch: pytest.MonkeyPatch, *, free: float, capability: tuple[int, int] = (9, 0), only: tuple[str, ...] = ()
) -> tuple[list[Benchmark], dict[str, str]]:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free), int(free)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        settings = BenchSettings(time_s=10, uses_gpu=True, only=only)
        return worker._benchmarks(settings, torch, GPU, Alone(), stack, missing, CurrentBenchmark(None, 0)), missing  # type: ignore[arg-type]


def shapes(cases: list[Benchmark], dtype: str) -> list[tuple[int, ...]]:
    return [case.labels["shape"] for case in cases if case.name == "matmul" and case.labels["dtype"] == dtype]


def test_a_large_gpu_is_asked_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, missing = asked(monkeypatch, free=80e9)
    for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8"):
        assert shapes(cases, dtype) == list(matmul.GPU_SHAPES)
    assert {case.name for case in cases} >= {
        *("memory_copy", "memory_triad", "host_memory_copy", "kernel_launch", "decode_jpeg", "decode_zlib"),
        *("host_to_device_pinned", "host_to_device_pageable", "device_to_host_pinned", "device_to_host_pageable"),
    }
    assert [what for what in missing if what.startswith("matmul")] == []
    assert {case.sample_s for case in cases if case.name == "matmul"} == {0.05}
    assert next(case for case in cases if case.name == "memory_copy").labels["size"] == 1 << 30


def test_a_small_gpu_is_asked_for_what_fits_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, missing = asked(monkeypatch, free=8e9)
    assert shapes(cases, "bf16") == [*matmul.GPU_SHAPES[:4], matmul.GPU_SHAPES[6]]
    assert missing["matmul 8192 x 28672 x 8192"] == "memory: 8.0 GB of a GPU are free"
    assert next(case for case in cases if case.name == "memory_copy").labels["size"] <= 8e9 / 16


def test_a_type_that_the_generation_lacks_is_told_and_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, missing = asked(monkeypatch, free=32e9, capability=(7, 0))  # V100
    assert missing["matmul fp8"] == "it needs compute capability 8.9, and the GPU has 7.0"
    assert {"matmul tf32", "matmul bf16"} <= missing.keys()
    assert "matmul fp16" not in missing
    fp8 = next(case for case in cases if case.labels.get("dtype") == "fp8")
    with pytest.raises(CannotMeasureError, match=r"8\.9"):
        fp8.check()


def test_only_what_was_named_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, _ = asked(monkeypatch, free=80e9, only=("host_to_device_pinned",))
    assert [(case.name, case.who) for case in cases] == [
        ("host_to_device_pinned", "turns"),
        ("host_to_device_pinned", "each"),
    ]
