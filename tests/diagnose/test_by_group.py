"""Exposed communication by process group: times that are known by construction, and their sum on any trace."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.diagnose.jobs import GEMM, STEP, found, times
from tests.report.page import read_page

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnose.by_group import purpose_by_name
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.records.diagnosis import Diagnosis, GroupCommunication, GroupPurpose, GroupSpan
from flatout.report.html import diagnosis_html
from flatout.report.text import diagnosis_text
from flatout.testing import TraceBuilder

US = 1e-6
TENSOR_US, DATA_US = 2000, 1000
PARTS = ("transfer", "wait", "bubble", "communication_unsplit")


def job(
    hosts: Sequence[str | None],
    *,
    tensor_groups: Sequence[tuple[int, ...]] = ((0, 1), (2, 3)),
    data_groups: Sequence[tuple[int, ...]] = ((0, 2), (1, 3)),
    tensor_us: float = TENSOR_US,
    data_us: float = DATA_US,
    late_us: float = 0,
    ranks: Sequence[int] = (0, 1, 2, 3),
) -> Diagnosis:
    """Four ranks compute, sum activations in tensor groups, then gradients in data groups.

    Rank 1 is late for the first by `late_us`.
    """
    traces = []
    for rank in ranks:
        trace = TraceBuilder(rank, 4)
        late = late_us if rank == 1 else 0
        for number, at in times(3):
            compute = STEP - 20 - tensor_us - data_us - late_us
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, compute + late)
            begin = at + 5 + compute
            for name, groups, start, length in (
                ("mesh_tp", tensor_groups, begin + late, tensor_us + late_us - late),
                ("mesh_dp", data_groups, begin + late_us + tensor_us, data_us),
            ):
                group = next(group for group in groups if rank in group)
                trace.collective(
                    "allreduce", at + 6 + 2 * (name == "mesh_dp"), start, length, group=f"{name}{group[0]}",
                    group_ranks=group, group_description=name,
                )  # fmt: skip
        traces.append(trace)
    timelines = [attribute_rank(trace.to_table()) for trace in traces]
    named = [
        msgspec.structs.replace(timeline, meta=msgspec.structs.replace(timeline.meta, hostname=hosts[timeline.rank]))
        for timeline in timelines
    ]
    return diagnose(attribute_job(named), untraced=Untraced(step_s=1e6))


def line(diagnosis: Diagnosis, purpose: GroupPurpose) -> GroupCommunication:
    lines = [each for each in diagnosis.communication if each.purpose is purpose]
    assert len(lines) == 1, diagnosis.communication
    return lines[0]


def exposed_in_steps_s(diagnosis: Diagnosis) -> float:
    """The mean over ranks of the communication parts of a step, from the parts of each step."""
    of_ranks = [
        sum(step.parts_s[part] for step in rank.steps for part in PARTS) / len(rank.steps) for rank in diagnosis.ranks
    ]
    return sum(of_ranks) / len(of_ranks)


def total_s(diagnosis: Diagnosis) -> float:
    return sum(each.exposed_s for each in diagnosis.communication)


def test_each_kind_of_group_has_its_own_time_and_place() -> None:
    diagnosis = job(["a", "a", "b", "b"])
    tensor, data = line(diagnosis, GroupPurpose.TENSOR), line(diagnosis, GroupPurpose.DATA)
    assert (tensor.span, tensor.group_size, tensor.num_groups) == (GroupSpan.WITHIN_NODE, 2, 2)
    assert (data.span, data.group_size, data.num_groups) == (GroupSpan.BETWEEN_NODES, 2, 2)
    assert tensor.transfer_s == pytest.approx(TENSOR_US * US)
    assert data.transfer_s == pytest.approx(DATA_US * US)
    assert data.names == ("mesh_dp",)
    assert diagnosis.communication[0] is tensor


def test_the_lines_sum_to_the_communication_of_the_steps() -> None:
    diagnosis = job(["a", "a", "b", "b"], late_us=1500)
    assert total_s(diagnosis) == pytest.approx(exposed_in_steps_s(diagnosis), rel=1e-9)


def test_waiting_counts_for_the_group_in_which_a_rank_waits() -> None:
    tensor = line(job(["a", "a", "b", "b"], late_us=1500), GroupPurpose.TENSOR)
    # Rank 0 waits for rank 1; ranks 2 and 3 wait for neither in their tensor group.
    assert tensor.wait_s == pytest.approx(1500 * US / 4, rel=0.01)


def test_the_hosts_of_all_ranks_decide_where_a_group_is() -> None:
    assert line(job([None] * 4), GroupPurpose.DATA).span is GroupSpan.UNKNOWN
    partly = job(["a", "a", None, "b"]).communication
    spans = {each.span for each in partly if each.purpose is GroupPurpose.DATA}
    assert spans == {GroupSpan.UNKNOWN, GroupSpan.BETWEEN_NODES}
    one_host = job(["a"] * 4)
    assert {each.span for each in one_host.communication} == {GroupSpan.WITHIN_NODE}


def test_without_the_other_ranks_the_time_is_unsplit_and_the_place_unknown() -> None:
    diagnosis = job(["a"] * 4, ranks=(0,))
    data = line(diagnosis, GroupPurpose.DATA)
    assert (data.transfer_s, data.span) == (0.0, GroupSpan.UNKNOWN)
    assert data.unsplit_s == pytest.approx(DATA_US * US)
    assert total_s(diagnosis) == pytest.approx(exposed_in_steps_s(diagnosis), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", GroupPurpose.TENSOR),
        ("DATA_PARALLEL_GROUP_WITH_CP", GroupPurpose.DATA),
        ("CONTEXT_PARALLEL_GROUP", GroupPurpose.CONTEXT),
        ("PIPELINE_MODEL_PARALLEL_GROUP", GroupPurpose.PIPELINE),
        ("EXPERT_MODEL_PARALLEL_GROUP", GroupPurpose.EXPERT),
        ("EXPERT_DATA_PARALLEL_GROUP", GroupPurpose.DATA),
        ("mesh_dp_shard", GroupPurpose.DATA),
        ("mesh_tp", GroupPurpose.TENSOR),
        ("mesh_pp", GroupPurpose.PIPELINE),
        ("default_pg", None),
        ("step", None),
        (None, None),
    ],
)
def test_the_name_of_a_group_says_what_it_is_for(name: str | None, purpose: GroupPurpose | None) -> None:
    assert purpose_by_name(name) is purpose


def test_the_text_and_the_page_show_the_groups() -> None:
    diagnosis = job(["a", "a", "b", "b"])
    text = diagnosis_text(diagnosis)
    rows = [line for line in text.splitlines() if "parallelism" in line or "nodes" in line]
    assert any("between nodes" in row and "2 x 2" in row and "1.00 ms" in row for row in rows), text
    section = read_page(diagnosis_html(diagnosis, ["flatout"])).section("communication")
    assert "between nodes" in section.text
    assert "2.00 ms" in section.text


def test_one_kind_of_group_on_one_host_needs_no_table() -> None:
    assert "by process group" not in diagnosis_text(job(["a"] * 4, data_us=0.001))
    assert "by process group" in diagnosis_text(job(["a"] * 4))


def advice(diagnosis: Diagnosis) -> tuple[str, ...]:
    return tuple(text for text in found(diagnosis, "exposed-communication").changes if "plan place" in text)


def test_tensor_groups_between_nodes_that_fit_into_one_are_advised_to_move_there() -> None:
    diagnosis = job(["a", "b", "a", "b"])
    assert line(diagnosis, GroupPurpose.TENSOR).span is GroupSpan.BETWEEN_NODES
    assert advice(diagnosis) == (
        "place the 2 ranks of each tensor-parallel group on one node (flatout plan place): saves up to 2.00 ms per"
        " step, 20 %",
    )
    assert advice(job(["a", "a", "b", "b"])) == ()
    assert advice(job(["a", "b", "c", "d"])) == ()  # no node has room for two ranks


def test_advice_on_placement_needs_two_per_cent_of_the_step() -> None:
    assert advice(job(["a", "b", "a", "b"], tensor_us=205, data_us=2000)) != ()
    assert advice(job(["a", "b", "a", "b"], tensor_us=195, data_us=2000)) == ()


def test_data_groups_at_unequal_places_of_their_nodes_are_advised_to_stay_on_a_rail() -> None:
    changing = job(["a", "a", "b", "b"], data_groups=((0, 3), (1, 2)))
    assert len(advice(changing)) == 1
    assert "equal local ranks" in advice(changing)[0]
    assert advice(job(["a", "a", "b", "b"], data_groups=((0, 3), (1, 2)), data_us=195)) == ()
