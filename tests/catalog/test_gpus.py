"""The catalogue against values typed from published tables, and against physics."""

from __future__ import annotations

from datetime import date

import pytest

from flatout.catalog import all_gpu_facts, gpu_facts
from flatout.records.machine import GpuFacts


def facts(name: str) -> GpuFacts:
    found = gpu_facts(name)
    assert found is not None, name
    return found


# reported name, TFLOP/s with 2:4 sparsity as the data sheets of Hopper and later print it (bf16, fp8), TB/s
SPARSE = [
    ("NVIDIA H100 80GB HBM3", 1979, 3958, 3.35),
    ("NVIDIA H100 PCIe", 1513, 3026, 2.0),
    ("NVIDIA H100 NVL", 1671, 3341, 3.9),
    ("NVIDIA H200", 1979, 3958, 4.8),
    ("NVIDIA H200 NVL", 1671, 3341, 4.8),
    ("NVIDIA B200", 4500, 9000, 7.7),
    ("NVIDIA GB200", 5000, 10000, 8.0),
    ("NVIDIA L4", 242, 485, 0.3),
    ("NVIDIA L40S", 724.1, 1466, 0.864),
    ("AMD Instinct MI300X", 2614.9, 5229.8, 5.3),
]


@pytest.mark.parametrize(("name", "bf16_sparse", "fp8_sparse", "memory_tb_per_s"), SPARSE)
def test_peaks_are_dense_half_of_the_published_sparse_ones(
    name: str, bf16_sparse: float, fp8_sparse: float, memory_tb_per_s: float
) -> None:
    gpu = facts(name)
    assert gpu.peak_flops_per_s["bf16"] == pytest.approx(bf16_sparse / 2 * 1e12, rel=1e-3)
    assert gpu.peak_flops_per_s["fp16"] == gpu.peak_flops_per_s["bf16"]
    assert gpu.peak_flops_per_s["fp8"] == pytest.approx(fp8_sparse / 2 * 1e12, rel=1e-3)
    assert gpu.memory_bytes_per_s == pytest.approx(memory_tb_per_s * 1e12, rel=1e-3)


def test_an_a100_has_312_tflops_and_no_fp8() -> None:
    gpu = facts("NVIDIA A100-SXM4-80GB")
    assert gpu.peak_flops_per_s == {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
    assert (gpu.memory_bytes_per_s, gpu.link_bytes_per_s, gpu.tdp_w) == (2039e9, 600e9, 400)


def test_a_v100_has_no_bf16() -> None:
    assert facts("Tesla V100-SXM2-32GB").peak_flops_per_s == {"fp32": 15.7e12, "fp16": 125e12}


def test_an_mi250_is_one_die_of_its_package() -> None:
    gpu = facts("AMD Instinct MI250")
    assert gpu.peak_flops_per_s["bf16"] == pytest.approx(362.1e12 / 2)
    assert gpu.memory_bytes == 64 << 30
    assert gpu.tdp_w is None
    assert "half" in gpu.note


# reported name, FP32 operations a clock in one SM or compute unit, boost clock in GHz
CLOCKS = [
    ("Tesla V100-SXM2-16GB", 128, 1.530),
    ("Tesla V100-PCIE-16GB", 128, 1.380),
    ("NVIDIA A100-SXM4-40GB", 128, 1.410),
    ("NVIDIA H100 80GB HBM3", 256, 1.980),
    ("NVIDIA H100 PCIe", 256, 1.755),
    ("NVIDIA H200", 256, 1.980),
    ("NVIDIA B200", 256, 1.965),
    ("Tesla T4", 128, 1.590),
    ("NVIDIA A10", 256, 1.695),
    ("NVIDIA L4", 256, 2.040),
    ("NVIDIA L40S", 256, 2.520),
    ("NVIDIA GeForce RTX 4090", 256, 2.520),
    ("NVIDIA GeForce RTX 5090", 256, 2.407),
    ("AMD Instinct MI210", 256, 1.700),
    ("AMD Instinct MI250", 256, 1.700),
    ("AMD Instinct MI250X", 256, 1.700),
    ("AMD Instinct MI300X", 256, 2.100),
]


@pytest.mark.parametrize(("name", "flops_a_clock", "boost_ghz"), CLOCKS)
def test_fp32_peak_is_units_times_lanes_times_clock(name: str, flops_a_clock: int, boost_ghz: float) -> None:
    gpu = facts(name)
    assert gpu.num_sms is not None
    assert gpu.peak_flops_per_s["fp32"] == pytest.approx(gpu.num_sms * flops_a_clock * boost_ghz * 1e9, rel=0.01)


# As deviceProperties of real traces have them.
REPORTED = [
    ("NVIDIA H200", 150109880320, 132),
    ("NVIDIA H100 80GB HBM3", 85018279936, 132),
    ("NVIDIA B200", 191503138816, 148),
    ("Tesla V100-SXM2-32GB", 34079899648, 80),
    ("AMD Instinct MI210", 68702699520, 104),
    ("AMD Instinct MI300X", 206141652992, 304),
    ("NVIDIA A100-SXM4-40GB", 42298834944, 108),
]


@pytest.mark.parametrize(("name", "memory_bytes", "num_sms"), REPORTED)
def test_memory_and_units_are_what_real_devices_report(name: str, memory_bytes: int, num_sms: int) -> None:
    gpu = facts(name)
    assert gpu.num_sms == num_sms
    assert 0.96 * gpu.memory_bytes < memory_bytes <= gpu.memory_bytes


@pytest.mark.parametrize("gpu", all_gpu_facts(), ids=lambda gpu: gpu.name)
def test_every_entry_is_whole_and_consistent(gpu: GpuFacts) -> None:
    assert set(gpu.peak_flops_per_s) <= {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4"}
    assert "https://" in gpu.source
    assert date.fromisoformat(gpu.date) <= date.today()
    assert gpu.origin == "vendor"
    peak = gpu.peak_flops_per_s
    for slow, fast in (("tf32", "bf16"), ("fp16", "fp8"), ("bf16", "fp8")):
        if slow in peak and fast in peak:
            assert peak[fast] / peak[slow] == pytest.approx(2, rel=0.03)
    for missing in (gpu.num_sms, gpu.tdp_w, gpu.memory_bytes_per_s):
        assert missing is not None or gpu.note


def test_each_reported_name_belongs_to_one_gpu() -> None:
    names = [name.casefold() for gpu in all_gpu_facts() for name in gpu.reported_names]
    assert len(names) == len(set(names))
    assert all(gpu_facts(name) is not None for name in names)


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "nvidia  a100-sxm4-40gb "])
def test_names_of_old_and_new_drivers_match(name: str) -> None:
    assert facts(name).name == "A100 SXM 40GB"


@pytest.mark.parametrize(
    "name",
    [
        "AMD Radeon Graphics",  # what some ROCm versions call an MI250 or an MI300X
        "AMD Instinct MI250X / MI250",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "NVIDIA A100-PG509-200",
        "",
    ],
)
def test_a_name_that_is_not_known_to_the_letter_has_no_facts(name: str) -> None:
    assert gpu_facts(name) is None
