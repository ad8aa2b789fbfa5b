"""The vectorised model against a scalar one, known bubble formulas, and what must hold of any layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.scalar import step_seconds

from flatout.catalog import all_models
from flatout.plan import case as cases
from flatout.plan.case import Case, Software
from flatout.plan.clusters import cluster
from flatout.plan.collectives import all_gather_s, all_reduce_s, dispatch_s
from flatout.plan.constants import PRIOR, Constants, from_logs, to_logs
from flatout.plan.layouts import Columns, Job, all_layouts, layout_at
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.search import Setting, evaluate_layouts
from flatout.plan.shipped import shipped
from flatout.plan.step_time import step_time
from flatout.records.plan import Layout, Workload


def one_case(model: Workload, machine: dict[str, float], layout: Layout, seq: int, software: Software) -> Case:
    return cases.stacked(
        [
            {
                **cases.workload_columns(model, seq),
                **machine,
                **cases.software_columns(software),
                **cases.layout_columns(layout),
            }
        ]
    )


def machine_of(name: str, precision: str) -> dict[str, float]:
    found, shares = cluster(name)
    return cases.machine_columns(found, precision, shares)


@cache
def layouts_of(model: str, machine: str, batch: int) -> Columns:
    return all_layouts(Job(workload=all_models()[model], cluster=cluster(machine)[0], global_batch=batch, seq=4096))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_every_layout_costs_what_the_scalar_model_says(data: st.DataObject) -> None:
    model = all_models()[data.draw(st.sampled_from(["llama3-8b", "llama2-70b", "gpt3-13b", "qwen3-8b"]))]
    name = data.draw(st.sampled_from(["h100x32", "a100x48", "gb200x144", "v100x16"]))
    precision = data.draw(st.sampled_from(["bf16", "fp8", "fp16"]))
    found, shares = cluster(name)
    columns = layouts_of(model.name, name, data.draw(st.sampled_from([576, 1152])))
    row = data.draw(st.integers(0, len(columns["tp"]) - 1))
    layout = layout_at(columns, row)
    constants = data.draw(st.sampled_from([PRIOR, from_logs(shipped().logs)]))
    machine = cases.machine_columns(found, precision, shares)
    case = one_case(model, machine, layout, 4096, Software())
    predicted = step_time(case, constants)
    assert predicted.total_s[0] == pytest.approx(step_seconds(model, machine, layout, 4096, constants), rel=1e-9)
    assert sum(part[0] for part in predicted.parts_s.values()) == pytest.approx(predicted.total_s[0], rel=1e-9)
    held = memory(case, MemoryConstants())
    assert sum(np.broadcast_to(part, (1,))[0] for part in held.parts.values()) == pytest.approx(held.total[0])


def test_a_search_costs_every_row_as_the_row_alone() -> None:
    found, shares = cluster("h100x64")
    model = all_models()["qwen3-30b-a3b"]
    job = Job(workload=model, cluster=found, global_batch=128, seq=4096)
    setting = Setting(job=job, precision="bf16", matmul_share=shares, software=Software(), calibration=shipped())
    columns = all_layouts(job)
    times, totals = evaluate_layouts(setting, columns)
    machine = cases.machine_columns(found, "bf16", shares)
    for row in np.random.default_rng(1).integers(0, len(times), 50):
        case = one_case(model, machine, layout_at(columns, int(row)), 4096, Software())
        assert times[row] == pytest.approx(step_time(case, from_logs(shipped().logs)).total_s[0], rel=1e-9)
        assert totals[row] == pytest.approx(memory(case, MemoryConstants()).total[0], rel=1e-9)


def pure_pipeline(**changed: Any) -> tuple[float, float]:
    """Seconds of a step and of its bubble where communication, jitter and logits cost nothing."""
    model = Workload(name="m", num_layers=48, hidden=4096, num_heads=32, num_kv_heads=32, head_dim=128, ffn=16384,
                     is_gated=False, vocab=1, is_tied=True)  # fmt: skip
    machine = machine_of("a100x8", "bf16") | {"nic": 1e30, "link": 1e30}
    constants = Constants(jitter=1e-30, latency=1e-30, update=1e-30)
    predicted = step_time(one_case(model, machine, Layout(**changed), 2048, Software()), constants)
    return float(predicted.total_s[0]), float(np.broadcast_to(predicted.parts_s["bubble"], (1,))[0])


@pytest.mark.parametrize(("pp", "num_micro"), [(2, 4), (4, 16), (8, 8)])
def test_the_bubble_of_1f1b_is_p_minus_1_over_m(pp: int, num_micro: int) -> None:
    total, bubble = pure_pipeline(pp=pp, num_micro_batches=num_micro)
    assert bubble / (total - bubble) == pytest.approx((pp - 1) / num_micro, rel=1e-3)


@pytest.mark.parametrize("vpp", [2, 3, 6])
def test_interleaving_divides_the_bubble_by_its_chunks(vpp: int) -> None:
    total, bubble = pure_pipeline(pp=8, num_micro_batches=16, vpp=vpp)
    assert bubble / (total - bubble) == pytest.approx(7 / (16 * vpp), rel=1e-3)


def test_zero_bubble_leaves_forward_of_forward_and_backward() -> None:
    """Qi et al., arXiv 2401.10241: with a backward of twice the forward, (p-1)(F + B - 2W) is a third of (p-1)(F +
    B).
    """
    _, plain = pure_pipeline(pp=8, num_micro_batches=16)
    _, filled = pure_pipeline(pp=8, num_micro_batches=16, schedule="zero-bubble")
    assert filled / plain == pytest.approx(1 / 3, abs=0.03)


def parts_of(model: str, **layout: Any) -> dict[str, float]:
    case = one_case(all_models()[model], machine_of("a100x64", "bf16"), Layout(**layout), 2048, Software())
    return {name: float(np.broadcast_to(part, (1,))[0]) for name, part in memory(case, MemoryConstants()).parts.items()}


def test_model_states_are_those_of_zero() -> None:
    """Rajbhandari et al., arXiv 1910.02054, table 1, with fp32 gradients as Megatron-LM and FSDP accumulate them."""
    n = 64
    states = [parts_of("gpt3-13b", dp=n, zero=zero) for zero in (0, 1, 2)]
    psi = states[0]["weights"] / 2
    assert psi == pytest.approx(12.85e9, rel=0.005)
    assert [s["optimizer"] / psi for s in states] == pytest.approx([12, 12 / n, 12 / n])
    assert [s["gradients"] / psi for s in states] == pytest.approx([4, 4, 4 / n])


def test_activations_are_those_of_korthikanti() -> None:
    """arXiv 2205.05198, table 2: s b h (34 + 5 a s / h) without any parallelism; dropout's masks and what the
    frameworks keep beside differ by a few per cent.
    """
    model = all_models()["gpt3-6.7b"]
    case = one_case(model, machine_of("a100x1", "fp16"), Layout(), 2048, Software(fused_attention=False))
    counted = memory(case, MemoryConstants(activations=1.0, allocator=1.0)).parts["activations"][0]
    s, h, a, layers = 2048, 4096, 32, 32
    assert counted == pytest.approx(layers * s * h * (34 + 5 * a * s / h), rel=0.06)


def test_more_of_a_resource_never_makes_a_step_slower() -> None:
    model = all_models()["llama3-70b"]
    machine = machine_of("h100x128", "bf16")
    layout = Layout(tp=8, sequence_parallel=True, pp=4, dp=4, zero=1, num_micro_batches=16)
    base = step_time(one_case(model, machine, layout, 8192, Software()), PRIOR).total_s[0]
    for name in ("nic", "link", "memory_rate", "matmul_peak"):
        faster = machine | {name: machine[name] * 2}
        assert step_time(one_case(model, faster, layout, 8192, Software()), PRIOR).total_s[0] <= base


def test_constants_survive_their_logarithms() -> None:
    assert from_logs(to_logs(PRIOR)) == PRIOR or np.allclose(to_logs(from_logs(to_logs(PRIOR))), to_logs(PRIOR))


def test_collectives_have_the_bus_bandwidth_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md: an all-gather moves (n-1)/n of the bytes at the bus's rate, an all-reduce twice that."""
    model, layout = all_models()["llama3-8b"], Layout()
    free = Constants(latency=1e-30, link=0.5, nic=0.8)
    case = one_case(model, machine_of("h100x64", "bf16"), layout, 2048, Software())
    inside = all_gather_s(case, free, 1e9, 8.0, 1.0)[0]
    assert inside == pytest.approx(1e9 * 7 / 8 / (450e9 * 0.5))
    assert all_reduce_s(case, free, 1e9, 8.0, 1.0)[0] == pytest.approx(2 * inside)
    across_with_one_member_a_node = all_gather_s(case, free, 1e9, 8.0, 8.0)[0]
    assert across_with_one_member_a_node == pytest.approx(1e9 * 7 / 8 / (50e9 * 0.8))
    across_with_all_adapters = all_gather_s(case, free, 1e9, 64.0, 1.0)[0]
    assert across_with_all_adapters == pytest.approx(1e9 * 63 / 64 / min(450e9 * 0.5, 8 * 50e9 * 0.8))


def test_a_token_crosses_to_a_node_once() -> None:
    """Of four nodes, two experts are on 4 (1 - (3/4)^2) = 1.75 different ones, three quarters of them elsewhere."""
    case = one_case(all_models()["mixtral-8x7b"], machine_of("h100x32", "bf16"), Layout(), 2048, Software())
    free = Constants(latency=1e-30, link=1.0, nic=1.0)
    near = 1e6 * 2 * 7 / 8 / 450e9
    assert dispatch_s(case, free, 1e6, 2.0, 8.0, 1.0)[0] == pytest.approx(near)
    assert dispatch_s(case, free, 1e6, 2.0, 32.0, 1.0)[0] == pytest.approx(near + 1e6 * 1.75 * 0.75 / 50e9)


def test_experts_cost_the_tokens_that_reach_them() -> None:
    """With as many experts chosen as there are, a layer of experts multiplies as much as a dense one of their width."""
    dense = all_models()["llama3-8b"]
    experts = msgspec.structs.replace(
        dense, ffn=0, num_experts=4, experts_per_token=4, expert_ffn=dense.ffn // 4, num_moe_layers=dense.num_layers
    )
    machine = machine_of("h100x8", "bf16") | {"sms": 1.0}
    constants = Constants(launch_s=1e-30, balance=1e-30, waves=1e-30, elementwise=1e-30)
    seconds = [
        float(np.broadcast_to(step_time(one_case(model, machine, Layout(micro_batch=8, dp=8), 4096, Software()),
                                        constants).parts_s["compute"], (1,))[0])
        for model in (dense, experts)
    ]  # fmt: skip
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-3)
