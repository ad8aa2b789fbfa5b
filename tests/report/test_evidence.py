from __future__ import annotations

from typing import Any

import pytest

from flatout import units
from flatout.report.evidence import evidence_texts


@pytest.mark.parametrize(
    ("key", "value", "label", "text"),
    [
        ("late_by_s", 0.0462, "late by", "46.2 ms"),
        ("excess_s_per_step", 0.001, "excess per step", "1.00 ms"),
        ("exposed_bytes", 96 * 2**20, "exposed", "96.0 MiB"),
        ("num_bytes", 1024, "size", "1.00 KiB"),
        ("bus_bandwidth_bytes_per_s", 21.3e9, "bus bandwidth", "21.3 GB/s"),
        ("peak_flops_per_s", {"fp32": 67e12, "bf16": 989e12}, "peak", "fp32 67.0 TFLOP/s, bf16 989 TFLOP/s"),
        ("hidden_share", 0.31, "hidden share", "31 %"),
        ("num_launches", 21408, "launches", "21,408"),
        ("launches_per_step", 512.5, "launches per step", "512"),
        ("cause", "data_loading", "cause", "data loading"),
        ("cause", "before_window", "cause", "late before the recording"),
        ("waiting_ranks", [0, 1, 2, 5], "waiting ranks", "0-2, 5"),
        ("slowest_rank", 1234, "slowest rank", "1234"),
        ("steps", [7, 1008], "steps", "7, 1008"),
        ("waiting_s", {"0": 0.1, "12": 0.02}, "waiting", "100 ms (rank 0), 20.0 ms (rank 12)"),
        ("lateness_by_part_s", {"memory_copy": 2e-5}, "lateness by part", "memory copy 20.0 us"),
        ("sizes", {"0": [1024, 8], "1": [7, 9]}, "sizes", "1,024 / 8 (rank 0), 7 / 9 (rank 1)"),
        ("recorder_cost_s", None, "recorder cost", "unknown"),
        ("slowdown", float("nan"), "slowdown", "unknown"),
        ("has_workers", False, "has workers", "no"),
        ("compute_ratio", 2.187, "compute ratio", "2.19x"),
        ("kernels", [], "kernels", "none"),
        ("kernels", [f"k{i}" for i in range(9)], "kernels", "k0, k1, k2, k3, k4, k5, k6, k7, ... (9 in total)"),
        ("start_ns", 1500, "start", "1.50 us"),
    ],
)  # fmt: skip
def test_the_key_tells_the_unit(key: str, value: Any, label: str, text: str) -> None:
    assert evidence_texts({key: value}) == [(label, text)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99996, "1.00 s"),
        (0.9994, "999 ms"),
        (9.9996e-5, "100 us"),
        (9.996e-3, "10.0 ms"),
        (0, "0 s"),
        (-0.0154, "-15.4 ms"),
        (1234.5, "1,234 s"),
    ],
)
def test_seconds_have_three_digits_at_every_border(value: float, text: str) -> None:
    assert units.seconds(value) == text


def test_rank_ranges() -> None:
    assert units.rank_ranges([3, 1, 0, 2, 3]) == "0-3"
    assert units.rank_ranges([0, 1]) == "0, 1"
    assert units.rank_ranges([]) == ""
    assert units.rank_ranges(range(0, 4000, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, ... (2,000 in total)"


def test_rates_and_numbers() -> None:
    assert units.bytes_per_s(450e9) == "450 GB/s"
    assert units.bytes_per_s(3.2e12) == "3.20 TB/s"
    assert units.flops_per_s(2e15) == "2.00 PFLOP/s"
    assert units.number(0.83) == "0.83"
    assert units.number(2685) == "2,685"
    assert units.number(1.44e9) == "1.44e+09"
