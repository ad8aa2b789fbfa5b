"""Diagnoses and facts made by hand."""

from __future__ import annotations

import msgspec

from flatout.records.change import JobFacts
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, JobSummary, RankDiagnosis, StepDiagnosis

# The job of the design: nanoGPT on four H200 over TCP sockets.
SOCKET_JOB = JobFacts(
    num_ranks=4,
    ranks_per_host=4,
    num_hosts=1,
    launcher="torchrun",
    device="cuda",
    gpu_arch=9.0,
    torch="2.11.0+cu128",
    nccl="2.27.5",
    backend="nccl",
    transport="socket",
    collective_bytes=256_000_000,
    gradient_bytes=496_000_000,
    gradient_element_bytes=4,
    cores_allowed=64.0,
    num_numa_nodes=2,
    threads_per_rank=1,
    wrapper="ddp",
    passes_per_step=1,
    find_unused_parameters=False,
    loader_workers=0,
    loader_pins_memory=False,
    loader_is_iterable=False,
    loader_cpu_share=1.0,
    loader_draws=False,
    loader_keeps_state=False,
    optimizer="AdamW",
    optimizer_is_fused=True,
    zero_grad_sets_to_none=True,
    has_convolutions=False,
    has_batch_norm=False,
    has_transformers=False,
    is_autocast=True,
    is_compiled=False,
    is_deterministic=False,
)


def facts(**values: object) -> JobFacts:
    return msgspec.structs.replace(SOCKET_JOB, **values)


# Facts that between them meet every need in the catalogue.
EVERY_KIND = (
    facts(passes_per_step=4, optimizer_is_fused=False, is_autocast=False, has_convolutions=True, has_transformers=True),
    facts(
        transport="nvlink",
        zero_grad_sets_to_none=False,
        loader_workers=2,
        loader_start_method="spawn",
        loader_length_spread=0.3,
        loader_batch_tokens=4096,
    ),
    facts(gpu_arch=7.0, is_autocast=False, has_xformers=True, has_bitsandbytes=True),
    facts(has_transformers=True, has_liger=True, has_torchao=True, has_transformer_engine=True),
    facts(transport="infiniband", num_hosts=2, wrapper="fsdp2", passes_per_step=2),
    facts(transport="pcie", launcher="srun", measured_collectives={"NCCL_BUFFSIZE": "1048576"}),
    facts(device="cpu", backend="gloo", transport=None, optimizer_is_fused=False, optimizer="RMSprop"),
    facts(
        device="cpu",
        num_ranks=1,
        only_infers=True,
        threads_per_rank=2,
        script_sets_threads=True,
        cpu_has_bf16=True,
        is_autocast=False,
        has_convolutions=True,
        has_transformers=True,
    ),
    facts(
        device="cpu",
        only_infers=True,
        runs_onnx=True,
        session_threads=8,
        session_is_optimized=False,
        other_providers="TensorrtExecutionProvider,CUDAExecutionProvider,OpenVINOExecutionProvider",
    ),
    facts(device="cpu", only_infers=True, has_onnx=True),
    facts(device="cuda", only_infers=True, has_transformers=True, threads_per_rank=8),
    facts(device="cpu", only_infers=True, threads_per_rank=8, cores_allowed=16.0),
    facts(device="cpu", only_infers=True, loader_workers=0, limited_batch=8),
)


def diagnosis(costs: dict[str, float], *, step_s: float = 0.25, parts: dict[str, float] | None = None) -> Diagnosis:
    """Findings with these costs a step, of one rank whose step has these seconds in parts."""
    all_parts = dict.fromkeys(PART_NAMES, 0.0) | (parts or {})
    step = StepDiagnosis(step=1, start_s=0.0, window_s=step_s, parts_s=all_parts)
    rank = RankDiagnosis(
        rank=0, window_s=step_s, num_steps=1, parts_s=all_parts, lead_in_s=0.0, steps=(step,), step_s=step_s
    )
    return Diagnosis(
        job=JobSummary(num_ranks=1, world_size=4, missing_ranks=(), device="NVIDIA H200", num_steps=1, step_s=step_s),
        ranks=(rank,),
        blame=(),
        findings=tuple(
            Finding(
                code="F00",
                name=name,
                title=name,
                ranks=(0,),
                cost_s_per_step=cost,
                share_of_step=cost / step_s,
                evidence={},
                changes=(),
                safety="exact",
                confidence="high",
            )
            for name, cost in costs.items()
        ),
        data_quality=(),
    )
