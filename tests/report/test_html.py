from __future__ import annotations

import itertools
import random
import re
from importlib.resources import files

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.report import builder
from tests.report.page import Node, read_page

from flatout import units
from flatout.records.diagnosis import PART_NAMES, Blame, Diagnosis
from flatout.report.html import MOST_SEGMENTS, diagnosis_html
from flatout.report.parts import PART_LABELS, PART_MEANINGS

COMMAND = ["flatout", "diagnose", "traces/it's", "--html", "report.html", "--api-key", "hunter2"]
MEGABYTE = 1_000_000


@pytest.fixture(params=sorted(builder.ALL), scope="module")
def diagnosis(request: pytest.FixtureRequest) -> Diagnosis:
    return builder.ALL[request.param]()


@pytest.fixture(scope="module")
def page(diagnosis: Diagnosis) -> Node:
    return read_page(diagnosis_html(diagnosis, COMMAND))


def straggler_page(**options: dict[str, str]) -> Node:
    return read_page(diagnosis_html(builder.straggler(), COMMAND, **options))


def test_nothing_outside_is_referred_to_and_there_is_no_script(page: Node) -> None:
    assert not page.all("script")
    for node in page.all():
        assert node.tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "svg", "video", "audio")
        assert not {"src", "href", "srcset", "action", "data"} & set(node.attributes)
        assert not [name for name in node.attributes if name.startswith("on")]
    style = page.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    policy = next(meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_is_under_1_mb(diagnosis: Diagnosis) -> None:
    assert len(diagnosis_html(diagnosis, COMMAND).encode()) < MEGABYTE / 2


def crowded(num_ranks: int, num_steps: int) -> Diagnosis:
    """Every rank unlike any other, every part used, everyone waiting for everyone, long notes."""
    noise = random.Random(num_ranks)
    ranks = [
        builder.rank_of(rank, [{name: noise.uniform(0.001, 0.05) for name in PART_NAMES} for _ in range(num_steps)])
        for rank in range(num_ranks)
    ]
    blame = [
        Blame(waiting_rank=a, blamed_rank=b, part=PART_NAMES[(a + b) % 13], wait_s=noise.uniform(0, 0.01))
        for a in range(num_ranks)
        for b in random.Random(a).sample(range(num_ranks), min(num_ranks, 64))
    ]
    found = [
        builder.finding(
            f"finding-{number}",
            0.01,
            0.02,
            title="x" * 3000,
            evidence={f"key{key}": ["y" * 3000] * 9 for key in range(3)},
            ranks=tuple(range(number)),
        )
        for number in range(12)
    ]
    return builder.diagnosis_of(ranks, blame=blame, findings=found)


@pytest.mark.parametrize(("num_ranks", "num_steps"), [(64, 200), (65, 10), (1000, 10)])
def test_the_page_is_under_1_mb_at_its_worst(num_ranks: int, num_steps: int) -> None:
    assert len(diagnosis_html(crowded(num_ranks, num_steps), COMMAND).encode()) < MEGABYTE


def test_widths_of_every_bar_sum_to_100_percent(page: Node) -> None:
    bars = page.all("div", "bar") + page.all("div", "block")
    assert bars
    for bar in bars:
        assert sum(piece.width for piece in bar.all("i")) == pytest.approx(100, abs=1e-6)


def test_a_bar_has_the_shares_of_a_mean_step() -> None:
    bars = straggler_page().section("ranks").all("div", "bar")
    for rank, bar in zip(builder.straggler().ranks, bars, strict=True):
        window_s = sum(step.window_s for step in rank.steps)
        for piece in bar.all("i"):
            part = PART_NAMES[int(piece.attributes["class"].removeprefix("p"))]
            share = sum(step.parts_s[part] for step in rank.steps) / window_s
            assert piece.width == pytest.approx(share * 100, abs=0.011)
            assert piece.attributes["title"].startswith(f"{PART_LABELS[part]} {piece.width:.1f} %, ")


def test_steps_of_all_ranks_lie_on_one_time_axis() -> None:
    diagnosis = builder.straggler()
    lanes = [row for row in straggler_page().section("steps").all("div", "row") if row.all("div", "block")]
    ends = [step.start_s + step.window_s for rank in diagnosis.ranks for step in rank.steps]
    assert len(lanes) == 4
    for rank, lane in zip(diagnosis.ranks, lanes, strict=True):
        for step, block in zip(rank.steps, lane.all("div", "block"), strict=True):
            left, width = re.findall(r"(?:left|width):([\d.]+)%", block.attributes["style"])
            assert float(left) == pytest.approx(step.start_s / max(ends) * 100, abs=0.006)
            assert float(width) == pytest.approx(step.window_s / max(ends) * 100, abs=0.006)
            assert block.attributes["title"].startswith(f"step {step.step}, from {units.seconds(step.start_s)}")


def test_of_too_many_steps_those_around_the_longest_are_drawn() -> None:
    steps = [{"compute": 0.1, "wait": 0.5 if number == 700 else 0.01} for number in range(2000)]
    diagnosis = builder.diagnosis_of([builder.rank_of(rank, steps, first_step=1) for rank in range(2)])
    section = read_page(diagnosis_html(diagnosis, COMMAND)).section("steps")
    blocks = section.all("div", "block")
    assert len(section.all("i")) <= MOST_SEGMENTS + 20
    assert len(blocks) == MOST_SEGMENTS // 2
    assert "1000 of 2000 steps, around the longest" in section.text
    assert any(block.attributes["title"].startswith("step 701,") for block in blocks)


def test_the_headline_says_what_is_wrong_what_it_costs_and_what_to_try() -> None:
    page = straggler_page()
    header = page.all("header")[0]
    assert header.all("h1")[0].text == builder.straggler().findings[0].title
    for expected in ("46.7 ms", "51 % of the step", "rank 2", "straggler", "check the lengths", "semantic"):
        assert expected in header.text
    assert "4 ranks NVIDIA H200 3 steps 92.8 ms per step" in header.text
    assert page.all("title")[0].text.startswith("straggler, 51 % of the step")


def test_every_finding_is_shown_with_evidence_changes_and_confidence(diagnosis: Diagnosis, page: Node) -> None:
    articles = page.all("article", "finding")
    assert len(articles) == len(diagnosis.findings)
    for finding, article in zip(diagnosis.findings, articles, strict=True):
        assert units.seconds(finding.cost_s_per_step) in article.text
        assert len(article.all("dl")[0].all("dt") if article.all("dl") else []) == len(finding.evidence)
        assert len(article.all("li")) == len(finding.changes)


def test_when_this_is_wrong_is_shown_where_it_is_given() -> None:
    page = straggler_page(explain={"straggler": "One step only.\n\nSee `num_steps`.", "other": "never shown"})
    details = [node.text for node in page.all("article")[0].all("details")]
    assert details == ["When this is wrong One step only. See num_steps ."]
    assert not page.all("article")[1].all("details")
    assert "never shown" not in page.text


def test_the_blame_matrix_has_the_seconds_a_step_and_the_part() -> None:
    table = straggler_page().section("blame").all("table", "matrix")[0]
    head = [cell.text for cell in table.all("tr")[1].all("th")]
    assert head == ["Waiting", "rank 1", "rank 2"]
    rows = [[cell.text for cell in row.children if isinstance(cell, Node)] for row in table.all("tbody")[0].all("tr")]
    for row, rank in zip(rows, builder.straggler().ranks, strict=True):
        wait_s = sum(step.parts_s["wait"] for step in rank.steps) / 3
        cell = f"{units.seconds(wait_s)} {'host launch' if rank.rank == 2 else 'compute'}"
        assert row == [f"rank {rank.rank}", *([cell, "·"] if rank.rank == 2 else ["·", cell])]
    assert "launch latency" in table.all("td")[2].attributes["title"]


def strengths(page: Node) -> set[float]:
    cells = page.section("blame").all("table", "matrix")[0].all("tbody")[0].all("td")
    return {float(cell.attributes["style"].removeprefix("--v:")) for cell in cells if "style" in cell.attributes}


def waiting_page(wait_s: float) -> Node:
    """Two ranks with steps of 100 ms, one of which waits for the other."""
    ranks = [builder.rank_of(rank, [{"compute": 0.1 - rank * wait_s, "wait": rank * wait_s}] * 3) for rank in (0, 1)]
    blame = [Blame(waiting_rank=1, blamed_rank=0, part="compute", wait_s=wait_s * 3)]
    return read_page(diagnosis_html(builder.diagnosis_of(ranks, blame=blame), COMMAND))


def test_the_colour_of_waiting_is_its_share_of_the_step_not_of_the_longest_wait() -> None:
    """The page of a healthy job once had its longest wait, 0.1 % of the step, in the strongest red."""
    assert strengths(waiting_page(0.0002)) == {0.0}
    assert strengths(waiting_page(0.0019)) == {0.0}
    assert strengths(waiting_page(0.00201)) == {0.11}
    assert 0.2 < strengths(waiting_page(0.01)).pop() < 0.35
    assert strengths(waiting_page(0.05)) == strengths(waiting_page(0.09)) == {0.6}
    assert "2 % 10 % 50 % or more none below 2 %" in waiting_page(0.01).section("blame").text


def test_a_line_never_ends_before_a_unit_and_a_long_name_has_joints() -> None:
    change = "larger buckets than 25.5 MB: torch.nn.parallel.DistributedDataParallel(bucket_cap_mb=100)"
    found = builder.finding("x", 0.1, 0.5, changes=(change, "NCCL_NSOCKS_PERTHREAD=2"))
    html = diagnosis_html(builder.diagnosis_of([builder.rank_of(0, [{"compute": 0.1}])], findings=[found]), COMMAND)
    assert "25.5\u00a0MB" in html
    assert "torch.<wbr>nn.<wbr>parallel.<wbr>DistributedDataParallel(<wbr>bucket_cap_mb=100)" in html
    assert "NCCL_NSOCKS_PERTHREAD=2" in html
    assert change in read_page(html).section("findings").text


def test_steps_that_ranks_begin_at_different_times_are_numbered_for_one_of_them() -> None:
    together = [builder.rank_of(rank, [{"compute": 0.1}] * 3) for rank in range(2)]
    apart = [builder.rank_of(rank, [{"compute": 0.1}] * 3, lead_in_s=0.02 * rank) for rank in range(2)]
    axes = [
        read_page(diagnosis_html(builder.diagnosis_of(ranks), COMMAND)).section("steps").all("div", "label")[0].text
        for ranks in (together, apart)
    ]
    assert axes == ["step", "step of rank 0"]


def test_texts_from_traces_are_escaped_and_made_visible() -> None:
    html = diagnosis_html(builder.hostile(), ["flatout", builder.HOSTILE], explain={builder.HOSTILE: builder.HOSTILE})
    assert "<script" not in html.lower()
    assert "<img" not in html.lower()
    assert not [character for character in html if character < " " and character != "\n"]
    assert "\u202e" not in html
    page = read_page(html)
    shown = (
        "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \"'&{{ 7*7 }} \\x1b[31m\\x00 \\u202e кернел"
    )
    assert page.all("h1")[0].text == shown
    assert page.all("article")[0].all("dt")[0].text == shown
    assert page.section("quality").all("li")[0].text == f"rank 1 : {shown} {shown}"
    assert "49" not in page.all("h1")[0].text


def test_the_command_is_shown_with_its_secret_masked() -> None:
    footer = straggler_page().all("footer")[0].text
    assert """flatout diagnose 'traces/it'"'"'s' --html report.html --api-key ***""" in footer
    assert "hunter2" not in footer


def test_a_healthy_job_says_so_first() -> None:
    page = read_page(diagnosis_html(builder.healthy(4), COMMAND))
    assert page.all("h1")[0].text == "No finding above 2 % of the step."
    assert not page.all("article")
    assert "Nothing was lost or repaired" in page.section("quality").text


def test_a_thousand_ranks_are_groups_and_outliers() -> None:
    section = read_page(diagnosis_html(builder.many_ranks(), COMMAND)).section("ranks")
    labels = [row.all("div", "label")[0].text for row in section.all("div", "row")]
    assert labels == ["997 ranks", "rank 137 data-loading", "rank 412 straggler", "rank 801 host-bound"]
    assert "997 ranks : 0-136, 138-411, 413-800, 802-999" in section.text
    assert "more than 2 % of the median step" in section.text


def test_without_steps_the_recording_is_the_base() -> None:
    page = read_page(diagnosis_html(builder.no_steps(), COMMAND))
    assert "a step" not in page.text
    assert "no trace of ranks 1, 2" in page.all("header")[0].text
    assert [section.attributes["id"] for section in page.all("section")] == [
        *("time", "findings", "ranks", "quality", "glossary"),
    ]


def test_headings_and_tables_are_semantic(page: Node) -> None:
    assert len(page.all("h1")) == 1
    levels = [int(node.tag[1]) for node in page.all() if re.fullmatch(r"h\d", node.tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for cell in page.all("th"):
        assert cell.attributes["scope"] in ("col", "row", "colgroup")
    ids = [node.attributes["id"] for node in page.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    assert all(node.attributes["aria-labelledby"] in ids for node in page.all("section"))
    assert page.all("html")[0].attributes["lang"] == "en"
    for bar in page.all("div", "bar"):
        assert bar.attributes["role"] == "img"
        assert bar.attributes["aria-label"]


def test_the_glossary_has_every_part() -> None:
    glossary = straggler_page().section("glossary").text
    for name in PART_NAMES:
        assert f"{PART_LABELS[name]} {PART_MEANINGS[name]}" in glossary


def test_a_job_without_ranks_is_a_page() -> None:
    page = read_page(diagnosis_html(builder.diagnosis_of([]), COMMAND))
    assert "No trace of a rank could be read." in page.text


# The colours. Matrices for full colour blindness: Machado, Oliveira and Fernandes 2009, doi:10.1109/TVCG.2009.113.
VISION = {
    "ordinary": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> NDArray[np.float64]:
    color = "#" + "".join(2 * digit for digit in color[1:]) if len(color) == 4 else color
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    relative = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float(TO_XYZ[1] @ linear(color)) for color in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def fills() -> dict[str, tuple[str, str, str, str]]:
    """part -> (colour, pattern, colour behind the label, colour of the label), from the style sheet."""
    css = (files("flatout.report") / "diagnosis.css").read_text()
    found = {}
    for index, name in enumerate(PART_NAMES):
        rule = re.search(rf"^\.p{index}(?:, \.p{index} b)? {{ background: (.*?)(#\w+); color: (#\w+); }}$", css, re.M)
        assert rule, name
        label = re.search(rf"^\.p{index} b {{ background: (#\w+); }}$", css, re.M)
        found[name] = (rule[2], rule[1], label[1] if label else rule[2], rule[3])
    return found


@pytest.mark.parametrize("vision", sorted(VISION))
def test_two_parts_differ_in_colour_or_pattern_for_everyone(vision: str) -> None:
    for (one, (color, pattern, *_)), (other, (color2, pattern2, *_)) in itertools.combinations(fills().items(), 2):
        distance = np.linalg.norm(lab(VISION[vision] @ linear(color)) - lab(VISION[vision] @ linear(color2)))
        assert distance >= 10 or pattern != pattern2, (one, other, distance)


def test_labels_are_readable_on_their_parts() -> None:
    for name, (_, _, behind, color) in fills().items():
        assert contrast(behind, color) >= 4.5, name
