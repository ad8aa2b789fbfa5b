from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import plan_builder as builder
from tests.report.page import Node, read_page

from flatout.records.plan import ExcludedLayouts, Plan
from flatout.records.plan_details import PlanDetails
from flatout.report.plan_charts import HEIGHT, MOST_DRAWN, WIDTH, beginning_s, front_points, pipeline_chart
from flatout.report.plan_html import plan_html

COMMAND = ["flatout", "plan", "--model", "llama3-70b", "--api-key", "hunter2"]
NEXT = ["flatout", "plan", "--calibrate", "RUNS.csv"]
Made = tuple[Plan, PlanDetails]


def text_of(made: Made) -> str:
    return plan_html(*made, COMMAND, next_command=NEXT)


@pytest.fixture(params=sorted(builder.ALL), scope="module")
def made(request: pytest.FixtureRequest) -> Made:
    return builder.ALL[request.param]()


@pytest.fixture(scope="module")
def page(made: Made) -> Node:
    return read_page(text_of(made))


def test_nothing_outside_is_referred_to_and_there_is_no_script(page: Node) -> None:
    for node in page.all():
        assert node.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image")
        assert not {"src", "href", "xlink:href", "srcset", "action", "data"} & set(node.attributes)
        assert not [name for name in node.attributes if name.startswith("on")]
    style = page.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    policy = next(meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_is_small_however_many_operations_there_are(made: Made) -> None:
    assert len(text_of(made).encode()) < 500_000


def test_bars_sum_to_the_whole(page: Node) -> None:
    for bar in page.all("div", "bar"):
        widths = [float(re.search(r"width:([\d.]+)%", each.attributes["style"])[1]) for each in bar.all("i")]  # type: ignore[index]
        assert sum(widths) == pytest.approx(100, abs=0.3)


def test_there_is_a_bar_for_each_stage_and_the_gpus_memory_beside_it(made: Made, page: Node) -> None:
    plan, details = made
    rows = page.section("memory").all("div", "row")
    assert len(rows) == min(64, plan.layouts[0].layout.pp)
    assert "80.0 GiB" in page.section("memory").text
    assert "runs out: 60 %" in rows[0].text
    assert ("more stages are not drawn" in page.section("memory").text) == (len(details.stages) > 64)


def test_the_pipeline_is_drawn_to_scale(made: Made) -> None:
    """Rectangles of a stage cover as much of the axis as the stage is busy."""
    _, details = made
    tail = [("p6", 1.0)]
    chart = pipeline_chart(details.pipeline, tail)
    end_s = max(stage[-1].end_s for stage in details.pipeline)
    assert chart.span_s == pytest.approx(end_s + 1.0)
    for lane, stage in zip(chart.lanes, details.pipeline, strict=True):
        covered = 0.0
        for kind, path in lane.paths:
            for left, top, width, height in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)H\1z", path):
                assert 0 <= int(left) < int(left) + int(width) <= WIDTH
                assert int(top) + int(height) == HEIGHT
                covered += int(width) * int(height) / HEIGHT if kind != "p6" else 0
        busy_s = sum(one.end_s - one.start_s for one in stage)
        rounding = 0.5 * len(stage) if not chart.is_merged else 0.03 * WIDTH
        assert covered == pytest.approx(busy_s / chart.span_s * WIDTH, abs=rounding + 1)


def test_every_rectangle_is_on_the_page(made: Made, page: Node) -> None:
    plan, details = made
    drawn = sum(path.attributes["d"].count("z") for path in page.section("pipeline").all("path"))
    operations = sum(len(stage) for stage in details.pipeline[:64])
    tail = sum(plan.layouts[0].parts_s[name] > 0 for name in ("pipeline_send", "data_parallel", "optimizer", "jitter"))
    if operations <= MOST_DRAWN:
        assert drawn == operations + tail * min(64, len(details.pipeline))
    else:
        start = pipeline_chart(details.pipeline[:64], (), until_s=beginning_s(details.pipeline))
        on_page = {path.attributes["d"] for path in page.section("pipeline").all("path")}
        assert {path for lane in start.lanes for _, path in lane.paths} <= on_page


def test_too_many_operations_are_merged_and_the_beginning_is_drawn_in_full() -> None:
    _, details = builder.interleaved()
    chart = pipeline_chart(details.pipeline, ())
    start = pipeline_chart(details.pipeline, (), until_s=beginning_s(details.pipeline))
    assert chart.is_merged and not start.is_merged
    drawn = sum(path.count("M") for lane in start.lanes for _, path in lane.paths)
    assert 100 < drawn <= MOST_DRAWN + 8
    assert {kind for kind, _ in start.lanes[0].paths} >= {"forward even", "forward odd", "backward even"}


def test_every_point_of_the_front_lies_inside_its_interval() -> None:
    points, marks = front_points(front := builder.interleaved()[1].front, [""] * len(front))
    assert marks == sorted(marks)
    for one in points:
        assert 0 <= float(one.low) < float(one.x) < float(one.high) <= 100
        assert 0 < float(one.y) < 100
    assert [one.is_best for one in points] == [True, *[False] * (len(points) - 1)]
    assert [float(one.x) for one in points] == sorted(float(one.x) for one in points)


def test_a_goal_is_answered_with_intervals_and_sources() -> None:
    page = read_page(text_of(builder.interleaved()))
    goal = page.section("goal").text
    for word in ("29.9 days", "money", "energy", "interruptions", "predicted step time", "$813,000"):
        assert word in goal
    assert "carbon" not in goal.split("The grid")[0], "unknown is left out, not 0"
    assert "cannot be reached with" in read_page(text_of(builder.zero_bubble())).section("goal").text
    assert not [one for one in read_page(text_of(builder.one_stage())).all("section") if one.attributes["id"] == "goal"]


def test_everything_a_plan_says_is_on_its_page() -> None:
    text = read_page(text_of(builder.interleaved())).text
    for words in (
        *("TP4+SP PP8x10 CP2 DP8 Z1 1x128", "20 % slower: 1.36 s more imbalance", "interleaved 1F1B", "twice"),
        *("flatout plan --calibrate RUNS.csv", "90 % interval", "70.6 billion parameters", "micro batch 2"),
    ):
        assert words in text


def test_who_can_run_a_layout_and_what_was_excluded_is_on_the_page() -> None:
    plan, details = builder.interleaved()
    layouts = tuple(msgspec.structs.replace(each, runs_on=("megatron", "nemo")) for each in plan.layouts)
    excluded = (ExcludedLayouts(framework="torchtitan", why="has no such schedule", num_layouts=1234),)
    targeted = msgspec.structs.replace(plan, target="any", layouts=layouts, excluded=excluded)
    text = read_page(text_of((targeted, details))).section("layouts").text
    assert "Runs on" in text and "megatron, nemo" in text
    assert "1,234 layouts that no framework can run. For example, torchtitan has no such schedule (1,234)." in text
    assert "Runs on" not in read_page(text_of((plan, details))).section("layouts").text


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    text = text_of(builder.hostile())
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "hunter2" not in text
