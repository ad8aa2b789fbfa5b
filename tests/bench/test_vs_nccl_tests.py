"""What `benchmarks/bench_vs_nccl_tests.py` reads of nccl-tests' tables, with a stand-in for its programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Two ranks of all-reduce, as nccl-tests 2.19 prints them: busbw is size / time * 2 (n - 1) / n, here the same as algbw.
TABLE = """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1     8.00    0.13    0.13       0    16.00    0.06    0.06       0
  1073741824     268435456     float     sum      -1  3579.14  300.00  300.00       0  4294.97  250.00  250.00       2
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 137.5
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("bench_vs_nccl_tests", BENCHMARKS / "bench_vs_nccl_tests.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def programs(script: ModuleType, folder: Path, table: str) -> Path:
    for program, _ in script.PROGRAMS.values():
        (folder / program).write_text(f"#!/bin/sh\ncat <<'END'\n{table}END\n")
        (folder / program).chmod(0o755)
    return folder


def test_the_columns_that_compare_with_torch_are_taken(script: ModuleType, tmp_path: Path) -> None:
    found = script.run_nccl_tests(programs(script, tmp_path, TABLE), 2, "1G")
    assert found["nccl"] == "2.28.9"
    # In place: 1024 B in 16 us. Out of place, send and receive have no factor: 1 GiB in 3,579.14 us.
    assert found["bandwidths"]["all_reduce"][1024] == pytest.approx(64e6)
    assert found["bandwidths"]["send_recv"][1 << 30] == pytest.approx(300e9, rel=1e-5)
    assert found["wrong"]["all_reduce"] == 2
    assert found["wrong"]["send_recv"] == 0
    # The table is all-reduce's, so its definition fits all-reduce, and that of all-gather, half of it, doesn't.
    assert found["definition"]["all_reduce"] == 0.0
    assert found["definition"]["all_gather"] == pytest.approx(150e9, rel=1e-3)


def test_ratios_are_taken_within_a_round_and_size(script: ModuleType) -> None:
    def one(theirs: float, ours: float) -> dict[str, object]:
        names = list(script.PROGRAMS)
        return {
            "nccl_tests": {"bandwidths": {name: {1024: theirs, 2048: 1.0} for name in names}},
            "flatout": {"bandwidths": {name: {1008: ours} for name in names}},  # whole shares of 3 ranks
        }

    found = script.ratios([one(2.0, 1.0), one(4.0, 3.0)])
    assert found["all_reduce"] == {1024: [0.5, 0.75]}
    assert script.summary(found)["all_reduce"]["up to 64 KiB"]["median"] == pytest.approx(0.625)
