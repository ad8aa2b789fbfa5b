"""The rule `no-tensor-cores`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, attributed, costs_us, found, free_of_recorder_cost, names, times

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.rules.no_tensor_cores import find
from flatout.testing import TraceBuilder

PLAIN = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute"


def multiplying(duration: float, *, kernel: str = PLAIN, device: str = "NVIDIA H200", rank: int = 0) -> TraceBuilder:
    """A matrix product of that kernel, and other kernels for the rest of the step."""
    trace = TraceBuilder(rank, 1, device_name=device)
    for number, at in times(2):
        trace.step(number, at, STEP)
        trace.launch(kernel, at, 5, at + 5, duration)
        trace.launch("vectorized_elementwise_kernel", at + 5, 1, at + 5 + duration, STEP - 5 - duration)
    return trace


def test_what_half_of_the_ratio_of_the_peaks_would_save_is_its_cost() -> None:
    """H200: 494.5 TFLOP/s in TF32 and 67 in fp32, half of the ratio is 3.69: 5000 us become 1355."""
    finding = found(free_of_recorder_cost(multiplying(5000)), "no-tensor-cores")
    assert finding.cost_s_per_step == pytest.approx(5000e-6 * (1 - 67 / (0.5 * 494.5)), rel=0.01)
    assert finding.evidence["plain_matmul_s"] == pytest.approx(5000e-6)
    assert finding.evidence["assumed_speedup"] == pytest.approx(3.69, abs=0.01)
    assert finding.evidence["kernels"] == [PLAIN]
    assert finding.safety == "rounding"
    assert finding.confidence == "high"


@pytest.mark.parametrize(
    "kernel",
    [
        "volta_sgemm_128x64_nn",
        "ampere_sgemm_32x128_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
    ],
)
def test_kernels_of_fp32_on_ordinary_cores_are_told(kernel: str) -> None:
    assert "no-tensor-cores" in names(free_of_recorder_cost(multiplying(5000, kernel=kernel)))


@pytest.mark.parametrize(
    "kernel",
    [
        GEMM,
        "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nn",
        "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn",
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_execute",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)",
        "Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2x1_SN",  # AMD's matrix cores run fp32 too
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int, decltype(nullptr)>(int, int, int)",
        "void bounds_check_indices_kernel<long, false>(long, fbgemm_gpu::FixedDivisor)",
        "vectorized_elementwise_kernel",
    ],
)
def test_kernels_with_tensor_cores_or_no_product_are_not_told(kernel: str) -> None:
    assert costs_us(free_of_recorder_cost(multiplying(5000, kernel=kernel))) == {}


@pytest.mark.parametrize("device", ["NVIDIA Z9000", "Graphics Device", ""])
def test_an_unknown_gpu_is_assumed_to_gain_a_factor_of_two(device: str) -> None:
    finding = found(free_of_recorder_cost(multiplying(5000, device=device)), "no-tensor-cores")
    assert finding.cost_s_per_step == pytest.approx(2500e-6)
    assert finding.confidence == "medium"
    assert finding.evidence["peak_flops_per_s"] is None


@pytest.mark.parametrize(("ratio", "speedup"), [(2, 1.5), (8, 4), (40, 8)])
def test_of_measured_peaks_half_of_the_ratio_counts_between_one_and_a_half_and_eight(
    ratio: float, speedup: float
) -> None:
    """A GPU whose tensor cores are hardly faster gains by less traffic still, and none gains 20 times as a whole."""
    (finding,) = find(DiagnosisContext(attributed(multiplying(5000)), peaks={"fp32": 1e13, "fp16": ratio * 1e13}))
    assert finding.evidence["assumed_speedup"] == speedup
    assert finding.cost_s_per_step == pytest.approx(5000e-6 * (1 - 1 / speedup))


def test_ranks_with_at_least_half_as_much_are_named() -> None:
    traces = [multiplying(duration, rank=rank) for rank, duration in enumerate((5000, 2000, 3000))]
    finding = found(free_of_recorder_cost(*traces), "no-tensor-cores")
    assert finding.ranks == (0, 2)
    assert finding.evidence["plain_matmul_s"] == pytest.approx(10_000e-6 / 3)


@pytest.mark.parametrize(("duration", "is_told"), [(260, False), (290, True)])
def test_below_two_percent_of_the_step_it_is_not_told(duration: float, is_told: bool) -> None:
    """With 290 us, 211 us are saved; with 260 us, only 190 us."""
    assert ("no-tensor-cores" in names(free_of_recorder_cost(multiplying(duration)))) == is_told
