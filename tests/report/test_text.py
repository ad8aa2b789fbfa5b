from __future__ import annotations

import io
import re
from typing import TextIO

import pytest
from tests.report import builder

from flatout.records.diagnosis import Diagnosis
from flatout.report.parts import rounded_shares
from flatout.report.terminal import TextStyle, style_of
from flatout.report.text import diagnosis_text

ASCII = TextStyle(has_unicode=False)


@pytest.fixture(params=sorted(builder.ALL))
def diagnosis(request: pytest.FixtureRequest) -> Diagnosis:
    return builder.ALL[request.param]()


def table_blocks(text: str) -> list[list[str]]:
    """The rows of each block of the parts table, as printed."""
    blocks: list[list[str]] = []
    is_in_block = False
    for line in text.splitlines():
        if re.match(r"\s*rank\s+(step|time)\s", line):
            blocks.append([])
            is_in_block = True
        elif is_in_block and re.match(r"\s*(\d[\d,]*|[\d,]+ ranks|mean)\s+[\d.,]+ (s|ms|us)\s", line):
            blocks[-1].append(line)
        else:
            is_in_block = False
    return blocks


def shares(row: str) -> list[float]:
    cells = re.split(r" (?:s|ms|us)\s", row, maxsplit=1)[1].split()
    return [0.0 if cell == "-" else float(cell) for cell in cells]


def test_every_line_fits_80_columns(diagnosis: Diagnosis) -> None:
    for style in (TextStyle(), ASCII):
        assert max(map(len, diagnosis_text(diagnosis, style=style).splitlines())) <= 80


def test_no_control_character_and_no_colour_reaches_a_plain_stream(diagnosis: Diagnosis) -> None:
    text = diagnosis_text(diagnosis)
    assert [character for character in text if character < " " and character != "\n"] == []
    assert "\u202e" not in text


def test_text_is_ascii_where_the_stream_is(diagnosis: Diagnosis) -> None:
    assert diagnosis_text(diagnosis, style=ASCII).isascii()


def test_colour_adds_only_escape_sequences(diagnosis: Diagnosis) -> None:
    colored = diagnosis_text(diagnosis, style=TextStyle(has_color=True))
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[\d*m", "", colored) == diagnosis_text(diagnosis)


def test_shares_of_a_row_sum_to_100_percent(diagnosis: Diagnosis) -> None:
    blocks = table_blocks(diagnosis_text(diagnosis))
    assert blocks
    for rows in zip(*blocks, strict=True):
        assert sum(sum(shares(row)) for row in rows) == pytest.approx(100)


def test_shares_are_those_of_a_mean_step() -> None:
    rows = table_blocks(diagnosis_text(builder.straggler()))[0]
    late = builder.straggler().ranks[2]
    compute = sum(step.parts_s["compute"] for step in late.steps) / sum(step.window_s for step in late.steps)
    assert shares(rows[2])[0] == pytest.approx(compute * 100, abs=0.1)
    assert len(rows) == 5


def test_a_finding_shows_cost_ranks_evidence_changes_safety_and_confidence() -> None:
    text = " ".join(diagnosis_text(builder.straggler()).split())
    for expected in (
        "1. straggler: 46.7 ms per step, 51 %, rank 2",
        "Rank 2 computes 46.2 ms longer",
        "cause: compute; late by: 46.2 ms; waiting ranks: 0, 1, 3",
        "check the lengths of its samples. (semantic)",
        "confidence high",
        "2. exposed-communication: 4.20 ms per step, 4.6 %, all ranks",
        "ranks 0, 1, 3 wait 46.2 ms per step for rank 2: compute",
    ):
        assert expected in text
    assert text.endswith("next: flatout explain straggler")


def test_a_healthy_job_says_so() -> None:
    text = diagnosis_text(builder.healthy(), next_command="flatout diagnose traces --html report.html")
    assert "No finding above 2 % of the step." in text
    assert text.endswith("next: flatout diagnose traces --html report.html\n")


def test_many_ranks_share_a_row_and_outliers_have_their_own() -> None:
    text = diagnosis_text(builder.many_ranks())
    rows = table_blocks(text)[0]
    assert [row.split()[0] for row in rows] == ["997", "137", "412", "801", "mean"]
    assert "997 ranks: 0-136, 138-411, 413-800, 802-999" in text
    assert len(text.splitlines()) < 60


def test_without_steps_the_base_is_the_recording() -> None:
    text = diagnosis_text(builder.no_steps())
    assert "2 of 4 ranks · no steps marked · 2.04 s recorded" in text
    assert "No trace of ranks 1, 2." in text
    assert "270 ms in total" in text
    assert "a step" not in text


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "has_color", "has_unicode"),
    [
        (Terminal(), {}, True, True),
        (Terminal(), {"NO_COLOR": "1"}, False, True),
        (Terminal(), {"NO_COLOR": ""}, True, True),
        (Terminal(), {"TERM": "dumb"}, False, True),
        (io.StringIO(), {}, False, False),
        (io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), {}, False, True),
        (io.TextIOWrapper(io.BytesIO(), encoding="ISO-8859-1"), {}, False, False),
    ],
)
def test_style_follows_the_stream(
    stream: TextIO, environment: dict[str, str], has_color: bool, has_unicode: bool
) -> None:
    style = style_of(stream, environment)
    assert (style.has_color, style.has_unicode) == (has_color, has_unicode)
    assert 60 <= style.width <= 100


def test_rounded_shares_sum_to_the_whole() -> None:
    assert rounded_shares([1, 1, 1], 1000) == [334, 333, 333]
    assert rounded_shares([0, 0], 1000) == [0, 0]
    assert rounded_shares([1e-12, 1], 1000) == [0, 1000]
