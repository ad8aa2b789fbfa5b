"""The timeline of a recording's steps, in the terminal and on the page."""

from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import builder

from flatout.records.recorded_time import RecordedTime, StepTimeline, TimelineLane, WallPart
from flatout.report.html import diagnosis_html
from flatout.report.recorded_text import parts_sentence, recorded_lines
from flatout.report.terminal import TextStyle
from flatout.report.text import diagnosis_text
from flatout.report.timeline import BLOCKS, HEIGHT, block_lines, fitted, lane_paths, scale_of

COMMAND = ["flatout", "diagnose", "r"]


def lane(rank: int, seconds: list[float], kinds: str | None = None) -> TimelineLane:
    return TimelineLane(ranks=(rank,), longest_s=tuple(seconds), kinds=kinds or "." * len(seconds))


def timeline(*lanes: TimelineLane, steps_per_bin: int = 1, first_step: int = 0) -> StepTimeline:
    num_steps = len(lanes[0].kinds) * steps_per_bin
    return StepTimeline(first_step=first_step, num_steps=num_steps, steps_per_bin=steps_per_bin, lanes=lanes)


def recorded(shown: StepTimeline, stalls_s: dict[str, float] | None = None, **parts_s: float) -> RecordedTime:
    every = dict.fromkeys(map(str, WallPart), 0.0) | parts_s
    return RecordedTime(
        num_steps=shown.num_steps,
        wall_s=sum(every.values()),
        parts_s=every,
        stalls_s=stalls_s or {},
        timeline=shown,
    )


def blocks(shown: StepTimeline, width: int = 80) -> list[str]:
    """The blocks of each lane, without its label."""
    lines = block_lines(shown, width=width, most_lanes=8, has_unicode=True)
    return [line.split("  ", 1)[1] for line in lines if line.startswith("rank")]


def test_stalls_stand_out_of_regular_steps() -> None:
    seconds = [1.0 if step % 20 == 0 else 0.010 for step in range(60)]
    assert blocks(timeline(lane(0, seconds))) == [("█" + "▁" * 19) * 3]


def test_a_slow_drift_can_be_seen() -> None:
    """Steps that grow from 10 to 40 ms: each block is as high as the one before, or higher."""
    (drawn,) = blocks(timeline(lane(0, [0.010 * 4 ** (step / 59) for step in range(60)])))
    assert list(drawn) == sorted(drawn)
    assert drawn[0] == "▁" and drawn[-1] == "█" and set(drawn) == set(BLOCKS)


def test_noise_stays_flat_and_a_large_stall_does_not_hide_a_small_one() -> None:
    noisy = [0.010 + 0.0005 * (step % 3) for step in range(60)]
    assert set(blocks(timeline(lane(0, noisy)))[0]) <= set("▁▂")
    noisy[20], noisy[40] = 10.0, 0.1
    (drawn,) = blocks(timeline(lane(0, noisy)))
    assert (drawn[20], drawn[40]) == ("█", "▃")


@pytest.mark.parametrize(("longest_s", "block"), [(0.0104, "▁"), (0.0111, "▂"), (0.0199, "█")])
def test_a_block_is_an_eighth_of_a_doubling(longest_s: float, block: str) -> None:
    """A scale is never narrower than a doubling: 10 ms * 2 ** (1 / 8) is 10.9 ms."""
    (drawn,) = blocks(timeline(lane(0, [0.010] * 59 + [longest_s])))
    assert drawn[-1] == block


def test_many_steps_are_binned_by_their_longest() -> None:
    seconds = [0.010] * 6000
    seconds[4321] = 1.0
    for width in (40, 80):
        (drawn,) = blocks(timeline(lane(0, seconds)), width)
        assert len(drawn) <= width - len("rank 0  ")
        assert drawn.count("█") == 1
        per_block = -(-6000 // len(drawn))
        assert drawn.index("█") == 4321 // per_block


def test_a_step_of_the_recorder_does_not_hide_the_jobs_own() -> None:
    """In a block of two steps only the ordinary one counts; a recorder's step that is alone is marked."""
    shown = timeline(lane(0, [0.010] * 8 + [5.0, 0.010, 5.0, 5.0], "." * 8 + "r.rr"))
    half = fitted(shown, most_bins=6, most_lanes=1)
    assert half.lanes[0].longest_s == (0.010, 0.010, 0.010, 0.010, 0.010, 5.0)
    assert half.lanes[0].kinds == ".....r"
    assert block_lines(shown, width=80, most_lanes=8, has_unicode=True)[1] == " " * 8 + " " * 8 + "r rr"


def test_a_stall_marks_its_block() -> None:
    shown = timeline(lane(0, [0.010, 0.5, 0.6, 0.010], ".s.w"))
    assert fitted(shown, most_bins=2, most_lanes=1).lanes[0].kinds == "s."
    assert fitted(shown, most_bins=1, most_lanes=1).lanes[0].longest_s == (0.6,)


def test_many_ranks_share_lines_and_the_longest_counts() -> None:
    lanes = [lane(rank, [0.010] * 9 + [1.0 if rank == 77 else 0.010]) for rank in range(100)]
    lines = block_lines(timeline(*lanes), width=80, most_lanes=8, has_unicode=True)
    assert len(lines) == 8
    (stalled,) = (line for line in lines if "█" in line)
    assert stalled.startswith("ranks 76-87")


def test_a_terminal_without_unicode_gets_ascii() -> None:
    shown = recorded(timeline(lane(0, [0.010, 1.0])), regular_steps=0.02, stalls=0.99)
    lines = recorded_lines(shown, TextStyle(has_unicode=False))
    assert lines[0] == "rank 0  .@"
    assert all(line.isascii() for line in lines)


def test_the_sentence_names_each_part_of_the_wall_time() -> None:
    shown = recorded(
        timeline(lane(0, [0.010])),
        {"checkpoint": 5.0, "unknown": 0.5},
        before_first_step=3.0,
        regular_steps=2.9,
        stalls=5.5,
        recorder=0.001,
    )
    assert parts_sentence(shown) == (
        "11.4 s in total: 3.00 s before the first step, 2.90 s regular steps, 5.50 s stalls (mostly checkpoint)"
    )


@pytest.mark.parametrize(("known_s", "is_named"), [(2.8, True), (2.7, False)])
def test_a_cause_is_named_if_it_is_most_of_the_stalls(known_s: float, is_named: bool) -> None:
    shown = recorded(timeline(lane(0, [0.010])), {"checkpoint": known_s, "logging": 5.5 - known_s}, stalls=5.5)
    assert ("mostly" in parts_sentence(shown)) == is_named


def test_the_reports_show_the_recording_before_the_traced_step() -> None:
    shown = recorded(
        timeline(lane(0, [0.1] * 9 + [1.0], "wrr....." + ".s")), {"checkpoint": 0.9}, stalls=0.9, warm_up=1
    )
    diagnosis = msgspec.structs.replace(builder.straggler(), recorded=shown)
    text = diagnosis_text(diagnosis)
    assert text.index("All steps of the recording") < text.index("Where the traced step goes")
    assert max(map(len, text.splitlines())) <= 80
    page = diagnosis_html(diagnosis, COMMAND)
    assert page.index("The whole recording") < page.index("Where the traced step goes")
    assert "<title>step 9: 1.00 s</title>" in page
    assert "rank 0: longest step 1.00 s, step 9; 1 of 10 steps with a stall" in page
    plain = diagnosis_html(builder.straggler(), COMMAND)
    assert "The whole recording" not in plain and "Where the step goes" in plain


def test_the_bars_of_a_lane_cover_all_of_its_bins() -> None:
    """No bar of 500 bins with alternating heights is lost, however long the path gets."""
    kinds = "ww" + ".s" * 249
    drawn = lane(0, [0.010 if bin % 2 else 0.5 for bin in range(500)], kinds)
    paths = dict(lane_paths(drawn, scale_of(timeline(drawn))))
    assert set(paths) == {"warm_up", "regular_steps", "stalls"}
    lefts = [int(left) for path in paths.values() for left in re.findall(r"M(\d+) ", path)]
    assert sorted(lefts) == list(range(500))
    shown = recorded(timeline(drawn), regular_steps=1.0)
    page = diagnosis_html(msgspec.structs.replace(builder.straggler(), recorded=shown), COMMAND)
    assert all(path in page for path in paths.values())


def test_bars_reach_from_an_eighth_to_the_full_height() -> None:
    drawn = lane(0, [0.010, 0.010, 1.0])
    (path,) = (path for _, path in lane_paths(drawn, scale_of(timeline(drawn))))
    assert path == f"M0 {HEIGHT - HEIGHT // 8}h2V{HEIGHT}H0zM2 0h1V{HEIGHT}H2z"


def test_a_page_with_many_ranks_stays_below_a_megabyte() -> None:
    """64 lanes of 187 bins is what `attribute/` makes of any number of ranks and steps."""
    lanes = [
        lane(rank, [0.010 + 0.001 * (bin * rank % 97) for bin in range(187)], ".s" * 93 + ".") for rank in range(64)
    ]
    shown = recorded(timeline(*lanes, steps_per_bin=50), regular_steps=1.0)
    page = diagnosis_html(msgspec.structs.replace(builder.straggler(), recorded=shown), COMMAND)
    assert len(page.encode()) < 500_000
