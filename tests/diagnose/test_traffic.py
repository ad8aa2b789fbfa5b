"""What a job's communication carries, and that the advice fits the wrapper and the size of the messages."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.diagnose.jobs import GEMM, STEP, found, free_of_recorder_cost, times

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.diagnosis import Diagnosis, Finding
from flatout.testing import TraceBuilder

CASES = Path(__file__).parents[1] / "data" / "cases"
DDP_WORDS = ("DistributedDataParallel", "bucket_cap", "compression hook", "comm_hook")


def case(name: str, folder: Path) -> Diagnosis:
    with tarfile.open(CASES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return diagnose_paths([folder]).diagnosis


def communication_findings(diagnosis: Diagnosis) -> list[Finding]:
    findings = [f for f in diagnosis.findings if f.name in ("exposed-communication", "exposed-all-gather")]
    assert findings
    return findings


def advice_of(diagnosis: Diagnosis) -> str:
    return "\n".join(line for finding in communication_findings(diagnosis) for line in finding.changes)


def layered(
    *operations: str,
    num_layers: int = 8,
    length: float = 300,
    num_elements: int = 1 << 20,
    wrapper: str | None = None,
    first_layer: int = 0,
    description: str | None = None,
) -> list[TraceBuilder]:
    """Two ranks: `num_layers` layers compute in each step; from `first_layer` on, each communicates afterwards."""
    compute = (STEP - 100 - length * len(operations) * (num_layers - first_layer)) / num_layers
    assert compute > 0
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP)
            if wrapper is not None:
                trace.annotation(wrapper, at, 50)
            now = at + 100.0
            for layer in range(num_layers):
                trace.launch(GEMM, at + 51 + layer, 1, now, compute)
                now += compute
                for operation in operations if layer >= first_layer else ():
                    launch_at = at + 60 + layer
                    trace.collective(operation, launch_at, now, length, num_elements=num_elements,
                                     group_description=description)  # fmt: skip
                    now += length
    return traces


def content(traces: list[TraceBuilder]) -> dict[str, float]:
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    shares: dict[str, float] = finding.evidence["exposed_by_content_s"]
    return shares


@pytest.mark.parametrize("name", ["fsdpnet", "zero3"])
def test_gathers_of_shards_never_have_the_advice_of_ddp(name: str, tmp_path: Path) -> None:
    text = advice_of(case(name, tmp_path))
    assert not any(word in text for word in DDP_WORDS)
    assert "prefetch" in text
    assert "stage3_prefetch_bucket_size" in text


def test_many_small_gathers_of_zero_are_to_be_grouped_first(tmp_path: Path) -> None:
    """400 gathers of 128 KiB per step: the latency of each counts, not the bandwidth."""
    (finding, *_) = communication_findings(case("zero3", tmp_path))
    assert "stage3_param_persistence_threshold" in finding.changes[0]
    assert "400 per step, 128 KiB each" in finding.title
    assert not any("reshard_after_forward" in line for line in finding.changes), "a setting of FSDP"


def test_few_large_gathers_at_a_low_rate_call_for_the_transport_first(tmp_path: Path) -> None:
    """10 gathers of 381 MiB per step at 4.63 GB/s."""
    diagnosis = case("fsdpnet", tmp_path)
    finding = found(diagnosis, "exposed-communication")
    assert "NCCL_DEBUG=INFO" in finding.changes[0]
    assert "10 messages per step carry weight shards, 381 MiB each" in finding.title
    assert finding.evidence["num_messages_per_step"] == 20, "and the reduce-scatters"


WRAPPED: dict[str, tuple[list[TraceBuilder], str, tuple[str, ...]]] = {
    "DDP": (
        layered("allreduce", wrapper="DistributedDataParallel.forward", first_layer=4),
        "gradients",
        ("bucket_cap_mb",),
    ),
    "gradients without a wrapper": (layered("allreduce", first_layer=4), "gradients", ("larger pieces",)),
    "FSDP": (
        layered("_allgather_base", "_reduce_scatter_base", wrapper="FSDP::all_gather", length=250),
        "weight shards",
        ("set_modules_to_forward_prefetch",),
    ),
    "ZeRO-3": (
        layered("_allgather_base", wrapper="DeepSpeedEngine.forward"),
        "weight shards",
        ("stage3_prefetch_bucket_size",),
    ),
    "ZeRO-1": (
        layered("_allgather_base", wrapper="DeepSpeedEngine.forward", first_layer=7),
        "updated weights",
        ("allgather_bucket_size",),
    ),
    "tensor parallelism": (layered("allreduce"), "activations", ("tensor-parallel group",)),
    "sequence parallelism": (
        layered("_allgather_base", "_reduce_scatter_base", length=250),
        "activations",
        ("tensor-parallel group",),
    ),
    "expert parallelism": (layered("all_to_all"), "expert tokens", ("expert-parallel group",)),
}


@pytest.mark.parametrize("name", list(WRAPPED))
def test_each_scheme_has_advice_of_its_own(name: str) -> None:
    traces, kind, words = WRAPPED[name]
    diagnosis = free_of_recorder_cost(*traces)
    text = advice_of(diagnosis)
    for word in words:
        assert word in text, text
    assert any(word in text for word in DDP_WORDS) == (name == "DDP")
    if any(f.name == "exposed-communication" for f in diagnosis.findings):
        assert kind in content(traces)


@pytest.mark.parametrize(("num_layers", "kind"), [(3, "gradients"), (4, "activations")])
def test_fewer_than_four_sums_per_pass_are_not_sums_of_layers(num_layers: int, kind: str) -> None:
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP)
            for layer in range(num_layers):
                begin = at + 100 + layer * 1000
                trace.launch(GEMM, at + layer, 1, begin, 500 if layer else 100)
                trace.collective("allreduce", at + 50 + layer, begin + 500, 500)
    assert list(content(traces)) == [kind]


@pytest.mark.parametrize(("before", "kind"), [(1900, "activations"), (2100, "gradients")])
def test_sums_that_begin_after_a_fifth_of_the_compute_are_gradients(before: float, kind: str) -> None:
    """8000 us of compute, of which `before` precedes the first of five sums."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 1, at + 1, before * 0.8)
            now = at + 1 + before * 0.8
            for layer in range(5):
                trace.collective("allreduce", at + 10 + layer, now, 300)
                trace.launch(GEMM, at + 20 + layer, 1, now + 300, (8000 - before * 0.8) / 5)
                now += 300 + (8000 - before * 0.8) / 5
    assert list(content(traces)) == [kind]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "activations"),
        ("mesh_tp", "activations"),
        ("DATA_PARALLEL_GROUP", "gradients"),
        ("mesh_dp_replicate", "gradients"),
        ("EXPERT_DATA_PARALLEL_GROUP", "gradients"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert tokens"),
        ("default_pg", "gradients"),
        ("steps", "gradients"),
    ],
)
def test_the_name_of_a_group_says_what_it_carries(name: str, kind: str) -> None:
    assert list(content(layered("allreduce", first_layer=4, description=name))) == [kind]


@pytest.mark.parametrize(("num_elements", "is_small"), [((1 << 18) - 1, True), (1 << 18, False)])
def test_a_message_is_small_below_a_mebibyte(num_elements: int, is_small: bool) -> None:
    """Elements of 4 bytes."""
    traces = layered("allreduce", wrapper="DistributedDataParallel.forward", first_layer=4, num_elements=num_elements)
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    assert finding.changes[0].startswith("larger gradient buckets") == is_small


@pytest.mark.parametrize(("length", "is_slow"), [(450, True), (400, False)])
def test_a_bus_below_ten_gb_per_s_calls_for_the_transport_first(length: float, is_slow: bool) -> None:
    """All-reduces of 4.19 MB between two ranks: 9.3 and 10.5 GB/s."""
    traces = layered("allreduce", wrapper="DistributedDataParallel.forward", first_layer=4, length=length)
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    assert finding.changes[0].startswith("check which transport") == is_slow


def test_other_ranks_are_asked_for_only_where_some_are_missing() -> None:
    whole = free_of_recorder_cost(*layered("allreduce", first_layer=4))
    part = free_of_recorder_cost(layered("allreduce", first_layer=4)[0])
    alone = TraceBuilder(0, 1).step(1, 0, STEP).launch(GEMM, 0, 1, 1, 5000)
    alone.collective("broadcast", 10, 6000, 4000)
    for diagnosis, is_missing in ((whole, False), (part, True), (free_of_recorder_cost(alone), False)):
        assert ("record the other ranks too" in advice_of(diagnosis)) == is_missing


@pytest.mark.parametrize(("length", "has_advice"), [(240, False), (260, True)])
def test_what_costs_a_quarter_of_the_largest_kind_has_advice_too(length: float, has_advice: bool) -> None:
    """1000 us of gradients, and a broadcast."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).annotation("DistributedDataParallel.forward", at, 10)
            trace.launch(GEMM, at + 10, 1, at + 11, 5000).collective("allreduce", at + 12, at + 5011, 1000)
            trace.collective("broadcast", at + 14, at + 6011, length, root=0)
    finding = found(free_of_recorder_cost(*traces), "exposed-communication")
    assert any("dispatch_batches" in line for line in finding.changes) == has_advice


@pytest.mark.parametrize(("between", "kind"), [(0.49, "updated weights"), (0.51, "weight shards")])
def test_gathers_of_zero_that_span_half_of_the_compute_are_those_of_stage_3(between: float, kind: str) -> None:
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace in traces:
        for number, at in times(2):
            trace.step(number, at, STEP).annotation("DeepSpeedEngine.forward", at, 10)
            trace.launch(GEMM, at + 10, 1, at + 11, 8000 * (1 - between))
            first = at + 11 + 8000 * (1 - between)
            trace.collective("_allgather_base", at + 12, first, 400)
            trace.launch(GEMM, at + 14, 1, first + 400, 8000 * between)
            trace.collective("_allgather_base", at + 16, first + 400 + 8000 * between, 400)
    diagnosis = free_of_recorder_cost(*traces)
    is_of_layers = any(finding.name == "exposed-all-gather" for finding in diagnosis.findings)
    assert is_of_layers == (kind == "weight shards")
