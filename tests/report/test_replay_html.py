"""The page of a replay: complete, self-contained, and safe with hostile names."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from flatout.records.replay import ReplayReport
from flatout.report.replay_html import HEIGHT, area, node_paths, replay_html
from flatout.report.replay_text import duration, replay_text
from flatout.report.terminal import TextStyle
from flatout.schedule.cluster import GpuType, uniform
from flatout.schedule.engine import FailureModel
from flatout.schedule.jobs import ClusterJob, JobHistory
from flatout.schedule.replay import replay

HOSTILE = "<script>alert(1)</script>\x1b[31m"


def made(policies: Sequence[str], *, team: str = "red") -> ReplayReport:
    jobs = tuple(
        ClusterJob(
            submit_s=number * 300.0, num_gpus=1 + number % 4, duration_s=2000.0, team=team if number % 2 else "blue"
        )
        for number in range(60)
    )
    return replay(JobHistory(jobs=jobs, source="CSV"), uniform(2, 4), policies)


def page(result: ReplayReport) -> str:
    return replay_html(result, ["flatout", "schedule", "replay", "x"], next_command="flatout schedule replay x")


def test_every_policy_has_its_row_its_curves_and_its_nodes() -> None:
    text = page(made(["fifo", "las", "flatout"]))
    assert text.count('class="panel"') == 6
    assert text.count('class="panel nodes"') == 3
    assert text.count('<tr><th scope="row">las') >= 2
    assert len(text) < 1_000_000


def test_it_is_self_contained_and_escapes_names() -> None:
    text = page(made(["fifo"], team=HOSTILE))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert not re.search(r"(?:src|href)=", text)


def test_an_oracle_is_never_the_best_policy() -> None:
    text = page(made(["fifo", "srtf-oracle", "las"]))
    assert "srtf-oracle" in text
    assert "<small>srtf-oracle</small>" not in text.split("</dl>")[0]


def test_text_and_page_have_the_same_stops_energy_and_money() -> None:
    jobs = tuple(
        ClusterJob(submit_s=n * 300.0, num_gpus=1 + n % 4, duration_s=9000.0, priority=n % 3) for n in range(60)
    )
    machine = uniform(2, 4, facts=GpuType(busy_w=700, idle_w=100, dollars_per_hour=2.5))
    failures = FailureModel(per_1000_node_days=2000)
    result = replay(JobHistory(jobs=jobs, source="CSV"), machine, ["priority"], failures=failures)
    (policy,) = result.policies
    assert policy.failures > 0 and policy.dollars is not None and policy.energy_kwh is not None
    text, markup = replay_text(result, style=TextStyle(), next_command="x"), page(result)
    said = f"priority  {policy.energy_kwh:,.0f} kWh  ${policy.dollars:,.0f}"
    assert said in text
    assert f"${policy.dollars:,.0f}</td>" in markup
    assert f'<td class="n">{policy.preemptions}</td>' in markup
    (row,) = (line.split() for line in text.splitlines() if "GPUh" in line and line.startswith("priority"))
    assert row[row.index("GPUh") + 1] == str(policy.preemptions)
    assert f"priority: {policy.failures} node failures" in text


def test_the_text_fits_eighty_columns() -> None:
    text = replay_text(made(["fifo", "las", "heterogeneity"]), style=TextStyle(), next_command="flatout x")
    assert max(map(len, text.splitlines())) <= 82
    assert "heterogeneity" in text


def test_a_curve_is_a_closed_step_path() -> None:
    assert area([0.0, 0.5, 0.5, 1.0], 10.0) == f"M0 {HEIGHT}H0.0V60H10.0V30H30.0V0H40.0V{HEIGHT}Z"


def test_equal_cells_of_a_node_are_one_rectangle() -> None:
    (full,) = node_paths([[4.0, 0.0], [4.0, 0.0], [0.0, 0.0]], 1.0)
    assert full == {"level": 5, "path": "M0.0 0h160.0v1h-160.0z"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (99.4, "99 s"), (120.0, "2 min"), (7200.0, "2.0 h"), (360_000.0, "100 h"), (4e7, "463 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_text_has_each_measure_with_its_interval_and_why_one_has_none() -> None:
    result = made(["fifo", "las"])
    text = " ".join(replay_text(result, style=TextStyle(), next_command="flatout x").split())
    for name in ("JCT p99", "wait", "goodput", "lost"):
        assert f"las {name} " in text
    assert "95 % interval" in text
    at_once = tuple(ClusterJob(submit_s=0.0, num_gpus=2, duration_s=100.0 + number) for number in range(20))
    none = replay(JobHistory(jobs=at_once, source="CSV"), uniform(2, 4), ["fifo", "las"])
    text = " ".join(replay_text(none, style=TextStyle(), next_command="flatout x").split())
    assert "(no interval), undecided" in text
    assert "las goodput unknown unknown" in text
    assert "goodput: all jobs were submitted at once." in text
    assert "no interval" in page(none)
