"""What Xids of a node call for: a storm of a job's Xids drains nothing, and an action is weighed by its cost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.records.gpu_health import GpuHealth
from flatout.records.watch import FailureProbability
from flatout.report.node_health_text import node_health_lines
from flatout.report.terminal import TextStyle
from flatout.watch.health.expected_loss import HORIZON_DAYS, TITAN_LIFT, StopCosts, drain_cost, failure_probability
from flatout.watch.health.node import NodeQuestion, NodeSources, judge_node
from flatout.watch.health.xid_actions import REPEATS

QUESTION = NodeQuestion(job_gpus=64, node_gpus=8, checkpoint_interval_s=3600, restart_s=300, repair_s=0)


def line(code: int, text: str = "pid=7, name=python3", gpu: str = "0000:1b:00") -> str:
    return f"[ 8123.{code:06d}] NVRM: Xid (PCI:{gpu}): {code}, {text}\n"


def judged(tmp_path: Path, *lines: str) -> tuple[str, bool]:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8.0\n" + "".join(lines))
    health = judge_node(NodeSources(log=tmp_path / "dmesg"), QUESTION)
    actions = [gpu.action for gpu in health.gpus]
    return max(actions, key=("none", "restart_job", "reset_gpu", "drain").index, default="none"), health.needs_action


NVLINK_TEXT = "pid='<unknown>', name=<unknown>, NETIR_BER_EVENT {} XC0 i0 Link 08 (0x000ad565 0x00000000)"


@pytest.mark.parametrize(
    "hostile",
    ["x" * 150_000 + " Link down\n", line(7).replace(": 7,", f": {'9' * 5000},"), "AER: " * 30_000 + "\n"],
    ids=["a name without end", "a number that Python refuses", "a beginning that is repeated"],
)
def test_a_line_without_end_takes_no_time_and_hides_no_other_line(tmp_path: Path, hostile: str) -> None:
    began_s = time.process_time()
    assert judged(tmp_path, hostile, line(48)) == ("reset_gpu", True)
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(
    ("lines", "action"),
    [
        ([], "none"),
        ([line(45)] * 11_000, "none"),
        ([line(13), line(31), line(43), line(45)], "none"),
        ([line(63)], "none"),
        ([line(48), line(63)], "reset_gpu"),
        ([line(63), line(48)], "reset_gpu"),
        ([line(48), line(63, gpu="0000:3b:00")], "reset_gpu"),
        ([line(64)], "drain"),
        ([line(79)], "drain"),
        ([line(94)], "restart_job"),
        ([line(95)], "reset_gpu"),
        ([line(119)] * (REPEATS - 1), "reset_gpu"),
        ([line(119)] * REPEATS, "drain"),
        ([line(119), line(119, gpu="0000:3b:00"), line(119, gpu="0000:5d:00")], "reset_gpu"),
        ([line(145, NVLINK_TEXT.format("Nonfatal"))] * 50, "none"),
        ([line(145, NVLINK_TEXT.format("Non-fatal"))], "none"),
        ([line(145, NVLINK_TEXT.format("Fatal"))], "reset_gpu"),
        ([line(149, "no severity in this text")], "none"),
        ([line(45)] * 100 + [line(79)], "drain"),
    ],
)
def test_xids_call_for_the_action_of_the_gravest(lines: list[str], action: str, tmp_path: Path) -> None:
    assert judged(tmp_path, *lines) == (action, action in ("reset_gpu", "drain"))


def costs(**changes: float) -> StopCosts:
    values = {
        "job_gpus": 64, "node_gpus": 8, "checkpoint_interval_s": 3600, "save_s": 60, "restart_s": 240,
        "detect_s": 60, "repair_s": 0,
    }  # fmt: skip
    return StopCosts(**{**values, **changes})  # type: ignore[arg-type]


def chance(low: float, high: float) -> FailureProbability:
    return FailureProbability(low=low, typical=(low + high) / 2, high=high, is_assumed=False, source="of this test")


def test_the_cost_of_draining_and_of_waiting_is_that_of_the_stops() -> None:
    cost = drain_cost(chance(0.5, 1.0), costs())
    assert cost.drain_gpu_h == pytest.approx(64 * 300 / 3600)
    assert cost.wait_gpu_h == pytest.approx((0.5 * 64 * 2100 / 3600, 64 * 2100 / 3600))
    assert cost.typical_wait_gpu_h == pytest.approx(0.75 * 64 * 2100 / 3600)
    assert cost.pays and cost.may_pay


TITAN = chance(0.004, 0.033)  # within 30 days: any card, and cards with an earlier event


@pytest.mark.parametrize(("restart_s", "may_pay"), [(0.03, True), (10_000, False), (240, False)])
def test_on_titan_a_drain_pays_only_if_a_stop_is_almost_free(restart_s: float, may_pay: bool) -> None:
    assert drain_cost(TITAN, costs(restart_s=restart_s, save_s=0)).may_pay is may_pay


def test_at_3_percent_a_planned_stop_must_cost_a_thirtieth_of_a_failure() -> None:
    failure_s = 30 * 60.0
    for stop_s, may_pay in ((failure_s * 0.0329, True), (failure_s * 0.0331, False)):
        cost = drain_cost(TITAN, costs(checkpoint_interval_s=0, detect_s=failure_s, restart_s=0, save_s=stop_s))
        assert cost.may_pay is may_pay


def test_without_a_sign_the_probability_is_that_of_published_interruptions() -> None:
    found = failure_probability("none")
    assert not found.is_assumed and "Llama 3" in found.source
    assert found.typical == pytest.approx(3.79 * HORIZON_DAYS / 1000, rel=0.02), "419 in 54 days of 2,048 nodes"
    assert (found.low, found.high) == pytest.approx((2.34 * 0.007, 6.50 * 0.007), rel=0.03)
    warned = failure_probability("warning")
    assert warned.low == found.low and warned.high == pytest.approx(found.high * TITAN_LIFT)
    assert all(failure_probability(evidence).is_assumed for evidence in ("reset", "drain"))


def test_nothing_is_drained_for_a_warning_alone(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8.0\n")
    hot = GpuHealth(gpu=2, margin_c=1, busy_percent=99)
    health = judge_node(
        NodeSources(log=tmp_path / "dmesg", history=tmp_path / "history"), QUESTION, read_gpus=lambda: ([hot], None)
    )
    assert [sign.kind for sign in health.signs] == ["thermal_margin"] and not health.needs_action
    assert health.cost is not None and not health.cost.pays
    lines = node_health_lines(health, TextStyle())
    assert lines[0] == "nothing calls for an action on this node (1 warning)"
    assert "GPU 2: warning (1 C below" in " ".join(lines)


def test_the_first_line_is_the_verdict_and_costs_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8.0\n" + line(79))
    lines = node_health_lines(judge_node(NodeSources(log=tmp_path / "dmesg"), QUESTION), TextStyle())
    assert lines[0] == "drain this node: 1 sign of a fault" and len(lines[0]) <= 80
    text = " ".join(lines)
    assert "Xid 79" in text and "draining now costs 5.33 GPU-hours, waiting costs" in text
    assert "draining costs less" in text and "80 % (50 % to 95 %), assumed: no rate is published" in text


def test_a_log_that_cannot_be_read_is_unknown_and_not_healthy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        judge_node(NodeSources(log=tmp_path / "none"), QUESTION)
