"""Where Flatout and HolisticTraceAnalysis (HTA) agree, and where HTA errs and why.

`exact_values.json` has unions of GPU events from an independent computation in integer ns. HTA 0.6.1 equals it to the
microsecond on traces of whole microseconds without `cuda_sync` events. Its other numbers are written here as it printed
them; Flatout's are held against the exact ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.conftest import Diagnose

from flatout.records.diagnosis import RankDiagnosis

ExactValues = dict[str, dict[str, Any]]

WHOLE_MICROSECONDS = (
    "hta/df_index_resolver.json.gz",
    "hta/sampled_rank-0.json.gz",
    "hta/sampled_rank-1.json.gz",
    "kineto_resnet50/num_workers_0.pt.trace.json.gz",
    "kineto_resnet50/num_workers_4.pt.trace.json.gz",
)
OTHERS = (  # whose GPU events all lie in Flatout's window
    "hta/alexnet_cuda_sync.json.gz",
    "hta/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta/nccl_data.json.gz",
    "hta/ns_resolution.rank-0.json.gz",
    "hta/triton_example.json.gz",
    "tracelens/b200_eager_trace.json.gz",
    "tracelens/mi210_gpu_only_trace.json.gz",
    "tracelens/mi300_vllm_decode_graph_execution.json.gz",
)
DLRM = "param_dlrm_8xV100/dlrm_kineto.tar.gz"


def in_us(rank: RankDiagnosis) -> dict[str, float]:
    """Unions as the exact values have them."""
    parts = rank.parts_s
    exposed = parts["transfer"] + parts["wait"] + parts["bubble"] + parts["communication_unsplit"]
    return {
        "compute_us": parts["compute"] * 1e6,
        "exposed_comm_us": exposed * 1e6,
        "busy_us": (parts["compute"] + exposed + parts["memory_copy"]) * 1e6,
    }


def expected_us(exact: dict[str, Any]) -> dict[str, float]:
    return {
        "compute_us": exact["compute_us"],
        "exposed_comm_us": exact["exposed_comm_us"],
        "busy_us": exact["span_us"] - exact["idle_us"],
    }


@pytest.mark.parametrize("name", [*WHOLE_MICROSECONDS, *OTHERS])
def test_unions_are_exact_to_the_nanosecond(public: Diagnose, exact_values: ExactValues, name: str) -> None:
    (rank,) = public(name).diagnosis.ranks
    assert in_us(rank) == pytest.approx(expected_us(exact_values[name]), abs=0.0015, rel=0)


def test_unions_of_the_eight_dlrm_ranks_are_exact(public: Diagnose, exact_values: ExactValues) -> None:
    for rank in public(DLRM).diagnosis.ranks:
        (exact,) = [v for name, v in exact_values.items() if name.startswith(f"{DLRM}:worker{rank.rank}_")]
        assert in_us(rank) == pytest.approx(expected_us(exact), abs=0.0015, rel=0)


def test_hta_is_right_where_times_are_whole_microseconds_but_leaves_out_the_last_step(
    public: Diagnose, exact_values: ExactValues
) -> None:
    """HTA: 238.3 ms of communication, in a window without the last ProfilerStep; the whole trace has 357.3."""
    name = "hta/df_index_resolver.json.gz"
    (rank,) = public(name).diagnosis.ranks
    assert exact_values[name]["overlap_us"] == 0
    assert rank.parts_s["communication_unsplit"] * 1e3 == pytest.approx(357.343, abs=0.0005)
    kept_by_hta = sum(step.parts_s["communication_unsplit"] for step in rank.steps[:-1])
    assert kept_by_hta * 1e3 == pytest.approx(238.3, abs=0.05)


@pytest.mark.parametrize(
    ("name", "hta_compute_us"), [("tracelens/mi210_gpu_only_trace.json.gz", 4780), ("hta/triton_example.json.gz", 94)]
)
def test_hta_is_wrong_in_compute(public: Diagnose, exact_values: ExactValues, name: str, hta_compute_us: float) -> None:
    """MI210: it rounds starts up and ends down to whole microseconds. Triton: operators of the host carry a stream."""
    (rank,) = public(name).diagnosis.ranks
    assert rank.parts_s["compute"] * 1e6 == pytest.approx(exact_values[name]["compute_us"], abs=0.0015)
    assert abs(hta_compute_us - exact_values[name]["compute_us"]) > 90


def test_hta_rounds_636_us_of_idle_time_up_to_1199(public: Diagnose, exact_values: ExactValues) -> None:
    """Between the first and the last GPU event of the MI210 trace; Flatout's window begins and ends with the host."""
    name = "tracelens/mi210_gpu_only_trace.json.gz"
    exact = exact_values[name]
    (rank,) = public(name).diagnosis.ranks
    busy_us = (rank.parts_s["compute"] + rank.parts_s["memory_copy"]) * 1e6
    assert exact["span_us"] - busy_us == pytest.approx(636.081, abs=0.0015)


def test_hta_takes_one_percent_of_the_b200_communication_for_it(public: Diagnose, exact_values: ExactValues) -> None:
    """73 `multimem_all_reduce_kernel`, 2,119.5 of 2,141.5 us, do not begin with `nccl`: HTA calls them compute."""
    name = "tracelens/b200_eager_trace.json.gz"
    done = public(name)
    (rank,) = done.diagnosis.ranks
    assert rank.parts_s["communication_unsplit"] * 1e6 == pytest.approx(exact_values[name]["comm_us"], abs=0.0015)
    kernels = done.job.timelines[0].communication
    reduces = [call.kernel for call in kernels.calls if call.operation == "all_reduce"]
    assert len(reduces) == 73
    spent_us = int((kernels.end_ns - kernels.start_ns)[reduces].sum()) / 1e3
    assert spent_us == pytest.approx(2119.5, abs=0.1)


def test_hta_takes_synchronisations_for_gpu_work(public: Diagnose, exact_values: ExactValues) -> None:
    """AlexNet: HTA's span of GPU work is 12,996,011 us, with a `cuda_sync` at its end; the work spans 12,920,244."""
    name = "hta/alexnet_cuda_sync.json.gz"
    exact = exact_values[name]
    assert exact["span_us"] == 12_920_244
    (rank,) = public(name).diagnosis.ranks
    busy_us = sum(rank.parts_s[part] for part in ("compute", "memory_copy")) * 1e6
    assert busy_us == pytest.approx(exact["compute_us"] + exact["mem_us"], abs=0.0015)
    assert rank.parts_s["communication_unsplit"] == 0


def test_hta_cannot_read_what_has_no_gpu(public: Diagnose) -> None:
    """IndexError and ValueError there; here the gloo collectives of one of 300 ranks."""
    (rank,) = public("hta/cpu_only.rank-34.json.gz").diagnosis.ranks
    assert rank.rank == 34
    assert rank.parts_s["communication_unsplit"] / rank.window_s > 0.8


def test_hta_names_a_rank_too_many_as_straggler(public: Diagnose) -> None:
    """DLRM: it says [2, 7]; rank 2 is the last in none of the eight collectives."""
    findings = [f for f in public(DLRM).diagnosis.findings if f.name == "straggler"]
    assert [f.ranks for f in findings] == [(7,)]
