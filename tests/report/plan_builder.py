"""Plans for the page: made by hand, so that a page's test needs no search."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flatout.plan.pipeline import simulate
from flatout.records.goal import Goal, GoalAnswer, GoalEstimate, GoalOption
from flatout.records.plan import Layout, Plan, PlannedLayout
from flatout.records.plan_details import PlanDetails, StageMemory

GIB = float(1 << 30)
MEMORY = {"weights": 9.0, "gradients": 9.0, "optimizer": 4.0, "activations": 20.0, "logits": 1.0, "overhead": 6.5}
STEP = {
    "compute": 13.0,
    "tensor_parallel": 1.9,
    "context_parallel": 0.0,
    "expert_parallel": 0.3,
    "pipeline_send": 0.1,
    "bubble": 0.5,
    "imbalance": 1.2,
    "data_parallel": 0.07,
    "optimizer": 0.02,
    "jitter": 0.9,
}


def planned(layout: Layout, scale: float = 1.0, memory: float = 1.0, why: str = "") -> PlannedLayout:
    parts = {name: value * scale for name, value in STEP.items()}
    held = {name: value * GIB * memory for name, value in MEMORY.items()}
    total = sum(parts.values())
    return PlannedLayout(
        layout=layout,
        step_time_s=total,
        step_time_interval_s=(total * 0.72, total * 1.39),
        tokens_per_s_per_gpu=939.0,
        mfu=0.43,
        memory_bytes=sum(held.values()),
        out_of_memory_probability=0.02,
        parts_s=parts,
        memory_parts_bytes=held,
        why=why,
    )


def estimate(value: float) -> GoalEstimate:
    return GoalEstimate(value=value, low=value * 0.7, high=value * 1.4, source="predicted step time")


def goal(*, is_reached: bool = True) -> GoalAnswer:
    days = estimate(29.9)
    return GoalAnswer(
        goal=Goal(text="1T tokens in 30 days", tokens=1e12, days=30.0),
        is_reached=is_reached,
        nearest="" if is_reached else "1,024 GPUs reach it in 14.6 days; 512 GPUs take 61 days",
        num_gpus=384,
        global_batch=1024,
        num_steps=119_210,
        layout="TP4 DP8",
        days=days,
        gpu_hours=estimate(275_000.0),
        usd=estimate(813_000.0),
        energy_mwh=estimate(242.0),
        carbon_t=None,
        interruptions=estimate(5.4),
        effective_share=GoalEstimate(value=0.99, low=0.96, high=1.0, source="a restart of 5 to 30 minutes"),
        options=(
            GoalOption(num_gpus=256, step_time_s=34.4, layout="TP8", days=days, usd=None, is_reached=False),
            GoalOption(num_gpus=384, step_time_s=21.4, layout="TP4", days=days, usd=estimate(8e5), is_reached=True),
        ),
        notes=("The grid is not known.",),
    )


def plan_of(layout: Layout, answer: GoalAnswer | None = None, name: str = "llama3-70b") -> tuple[Plan, PlanDetails]:
    pp, m = layout.pp, layout.num_micro_batches
    each = 13.0 / m
    pipeline = simulate(
        pp, m, layout.vpp, [each / 3] * pp, [each * 2 / 3] * pp, schedule=layout.schedule if pp > 1 else "1f1b"
    )
    others = [msgspec.structs.replace(layout, micro_batch=size) for size in (2, 4, 8)]
    front = tuple(planned(one, 1.0 + 0.8 * n, 1.0 / (1 + n)) for n, one in enumerate([layout, *others]))
    plan = Plan(
        workload=name,
        cluster="h100x512",
        num_parameters=70_553_706_496,
        global_batch=1024,
        seq=8192,
        precision="bf16",
        num_layouts=77_412,
        num_fitting=24_261,
        search_s=0.2,
        layouts=front,
        neighbours=tuple(planned(one, 1.2, why="20 % slower: 1.36 s more imbalance") for one in others),
        worth_measuring=(layout, *others[:2]),
        sensitivity={"network_bandwidth_x2": 0.98, "nvlink_bandwidth_x2": 1.0, "matmul_rate_x2": 0.6},
        calibrated_with=0,
        goal=answer,
    )
    stages = tuple(
        StageMemory(
            stage=stage,
            num_layers=80 // pp,
            parts_bytes={name: value * GIB * (1.0 if stage else 1.7) for name, value in MEMORY.items()},
            out_of_memory_probability=0.02 if stage else 0.6,
        )
        for stage in range(pp)
    )
    return plan, PlanDetails(
        gpu="H100 SXM 80GB", gpu_memory_bytes=80 << 30, stages=stages, pipeline=pipeline, front=front
    )


def interleaved() -> tuple[Plan, PlanDetails]:
    return plan_of(
        Layout(tp=4, sequence_parallel=True, pp=8, vpp=10, cp=2, dp=8, zero=1, num_micro_batches=128), goal()
    )


def zero_bubble() -> tuple[Plan, PlanDetails]:
    layout = Layout(tp=8, pp=8, dp=8, zero=1, num_micro_batches=24, schedule="zero-bubble", recompute="full")
    return plan_of(layout, goal(is_reached=False))


def one_stage() -> tuple[Plan, PlanDetails]:
    return plan_of(Layout(dp=512, zero=3, micro_batch=2, num_micro_batches=200))


def many_stages() -> tuple[Plan, PlanDetails]:
    return plan_of(Layout(tp=8, sequence_parallel=True, pp=96, dp=4, num_micro_batches=256))


def hostile() -> tuple[Plan, PlanDetails]:
    plan, details = one_stage()
    name = "<script>alert(1)</script><img src=x>\x1b[31m"
    bad = msgspec.structs.replace(goal(), notes=(name,), layout=name)
    return msgspec.structs.replace(plan, workload=name, cluster=name, goal=bad), msgspec.structs.replace(
        details, gpu=name
    )


ALL: dict[str, Callable[[], tuple[Plan, PlanDetails]]] = {
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
    "one_stage": one_stage,
    "many_stages": many_stages,
    "hostile": hostile,
}
