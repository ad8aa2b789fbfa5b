"""What a trial relies on: the job stopped at one step on all ranks, failures told apart, facts of the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.inside.patches.runs import Done, run

from flatout.profile.step_lines import read_rank
from flatout.trial.data import check_data

pytestmark = pytest.mark.usefixtures("warm")


def _events(done: Done, name: str) -> list[dict[str, Any]]:
    found = []
    for file in sorted(done.recording.glob("rank*.steps.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found += [line for line in lines if isinstance(line, dict) and line.get("event") == name]
    return found


@pytest.mark.parametrize(
    ("how", "ranks", "light"),
    [("alone", 1, "1"), ("alone", 1, "0"), ("ranks", 2, "1"), ("ranks", 2, "0"), ("spawn", 1, "1")],
)
def test_all_ranks_stop_after_the_same_step_quietly_with_code_0(
    tmp_path: Path, how: str, ranks: int, light: str
) -> None:
    done = run(
        tmp_path / "recording",
        "long",
        how,
        ranks=ranks,
        is_recorded=True,
        by_torchrun=(how, light) == ("ranks", "1"),
        FLATOUT_STOP_AFTER="40",
        FLATOUT_LIGHT=light,
    )
    assert (done.code, done.errors if how != "ranks" else "") == (0, "")
    assert "Traceback" not in done.errors
    assert done.output == (["parent went on"] if how == "spawn" else [])
    stops, plans, ends = (_events(done, name) for name in ("stop", "plan", "end"))
    assert len(stops) == len(ends) == (1 if how == "alone" else 2)
    assert len({stop["after_step"] for stop in stops}) == 1
    assert {stop["reason"] for stop in stops} == {"steps"}
    assert {end["num_steps"] for end in ends} == {stops[0]["after_step"] + 1}
    rows = [json.loads(line) for line in (done.recording / "rank0.steps.jsonl").read_text().splitlines()]
    ordinary = [row for row in rows if isinstance(row, list) and row[0] >= plans[0]["settled"] and row[9] == ""]
    assert len(ordinary) == max(40, plans[0]["flops_step"] - plans[0]["settled"])
    assert (done.recording / "rank0.json").exists() == (light == "0")
    # Nothing is counted, traced or looked through where steps are compared.
    assert ({row[9] for row in rows if isinstance(row, list)} == {"first", ""}) == (light == "1")


def test_all_ranks_of_a_trial_stop_when_enough_steps_are_counted(tmp_path: Path) -> None:
    rule = {"min_steps": 5, "max_steps": 400, "min_s": 0.2, "max_s": 1.0, "relative_error": 0.5}
    done = run(
        tmp_path / "recording", "long", "ranks", ranks=2, is_recorded=True, FLATOUT_LIGHT="1",
        FLATOUT_STOP_RULE=json.dumps(rule),
    )  # fmt: skip
    assert done.code == 0, done.errors
    stops, (plan, _) = _events(done, "stop"), _events(done, "plan")
    assert {stop["reason"] for stop in stops} == {"enough"}
    assert stops[0]["after_step"] == stops[1]["after_step"]
    lines = (done.recording / "rank0.steps.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    counted_ns = [row[2] for row in rows if isinstance(row, list) and row[0] >= plan["settled"]]
    assert 0.2e9 < sum(counted_ns) < 1.2e9
    ranks = [read_rank(done.recording / f"rank{rank}.steps.jsonl") for rank in range(2)]
    assert {rank.stopped_by for rank in ranks if rank is not None} == {"enough"}
    (group_began, group_ended), *_ = _events(done, "started")[0]["groups"]
    assert group_began < group_ended < json.loads(lines[0])["recorded_since_unix_ns"]
    assert done.log == ""


def test_a_time_limit_stops_all_ranks_at_one_step(tmp_path: Path) -> None:
    limits = {"FLATOUT_STOP_AFTER_S": "1", "FLATOUT_LIGHT": "1"}
    done = run(tmp_path / "recording", "long", "ranks", ranks=2, is_recorded=True, **limits)
    assert done.code == 0, done.errors
    stops = _events(done, "stop")
    assert [stop["reason"] for stop in stops] == ["time", "time"]
    assert stops[0]["after_step"] == stops[1]["after_step"]


def test_a_job_that_ends_before_the_stop_ends_as_ever(tmp_path: Path) -> None:
    done = run(tmp_path / "recording", "long", "alone", 30, is_recorded=True, FLATOUT_STOP_AFTER="500")
    assert (done.code, done.said("own_end")) == (0, "30")
    assert _events(done, "stop") == []


@pytest.mark.parametrize(
    ("how", "ranks", "kinds"),
    [
        ("alone-memory", 1, {0: "out_of_memory"}),
        ("alone-cublas", 1, {0: "out_of_memory"}),
        ("alone-wrong", 1, {0: "error"}),
        ("memory", 2, {0: "error", 1: "out_of_memory"}),
        ("spawn-memory", 1, {1: "out_of_memory"}),
    ],
)
def test_out_of_memory_is_told_from_other_failures(tmp_path: Path, how: str, ranks: int, kinds: dict[int, str]) -> None:
    done = run(tmp_path / "recording", "long", how, ranks=ranks, is_recorded=True, by_torchrun=how == "memory")
    assert done.code == 1
    assert "Traceback" in done.errors
    failures = {line["rank"]: line for line in done.lines("failure-*.json")}
    told = {rank: line["kind"] for rank, line in failures.items()}
    # A peer may be killed before its own error reaches it.
    assert told.items() >= {rank: kind for rank, kind in kinds.items() if kind == "out_of_memory" or ranks == 1}.items()
    assert told.items() <= {0: "error", **kinds}.items()
    if told.get(1) == "out_of_memory" or how == "alone-memory":
        assert failures[max(told)]["exception"] == "OutOfMemoryError"


def test_facts_of_the_job_are_written_once_the_window_is_over(tmp_path: Path) -> None:
    done = run(tmp_path / "recording", "long", "ranks", ranks=2, is_recorded=True, FLATOUT_STOP_AFTER="10")
    assert done.code == 0, done.errors
    facts = json.loads((done.recording / "facts-rank1.json").read_text())["facts"]
    assert facts["wrapper"] == "ddp"
    assert (facts["optimizer"], facts["optimizer_is_fused"]) == ("AdamW", False)
    assert (facts["loader_workers"], facts["loader_prefetch"], facts["loader_pins_memory"]) == (1, 2, False)
    assert facts["zero_grad_sets_to_none"] is False
    assert facts["is_autocast"] is True
    assert (facts["has_convolutions"], facts["has_batch_norm"], facts["has_transformers"]) == (True, True, False)
    assert (facts["backend"], facts["device"], facts["threads_per_rank"]) == ("gloo", "cpu", 1)
    assert facts["gradient_bytes"] == 4 * (4 * 8 * 3 + 8 + 8 + 8 + 48 * 4 + 4)
    assert done.log == ""


def test_facts_of_a_trial_are_written_at_its_stop(tmp_path: Path) -> None:
    done = run(tmp_path / "recording", "long", "ranks", ranks=2, is_recorded=True, FLATOUT_STOP_AFTER="10",
               FLATOUT_LIGHT="1", FLATOUT_FACTS="1")  # fmt: skip
    assert done.code == 0, done.errors
    facts = json.loads((done.recording / "facts-rank1.json").read_text())["facts"]
    assert (facts["wrapper"], facts["optimizer"], facts["loader_workers"]) == ("ddp", "AdamW", 1)
    assert facts["zero_grad_sets_to_none"] is None
    assert done.log == ""


def test_the_loader_of_a_trial_whose_job_ends_before_the_stop_is_known(tmp_path: Path) -> None:
    """It is gone by then, and its workers decide how the losses are compared."""
    done = run(tmp_path / "recording", "long", "alone", 80, is_recorded=True, FLATOUT_STOP_AFTER="500",
               FLATOUT_LIGHT="1", FLATOUT_FACTS="1")  # fmt: skip
    assert (done.code, done.said("own_end")) == (0, "80")
    facts = json.loads((done.recording / "facts-rank0.json").read_text())["facts"]
    assert (facts["loader_workers"], facts["loader_prefetch"]) == (1, 2)
    rows = [json.loads(line) for line in (done.recording / "rank0.steps.jsonl").read_text().splitlines()]
    assert {row[9] for row in rows if isinstance(row, list)} == {"first", ""}
    assert done.log == ""


@pytest.mark.parametrize("how", ["ranks", "ranks-corrupt"])
def test_wrong_numbers_of_collectives_are_found_at_the_stop(tmp_path: Path, how: str) -> None:
    done = run(tmp_path / "recording", "long", how, ranks=2, is_recorded=True, FLATOUT_STOP_AFTER="10",
               FLATOUT_LIGHT="1", FLATOUT_DATA_CHECK="1")  # fmt: skip
    assert done.code == 0
    assert {line["rank"] for line in done.lines("data-check-rank*.json")} == {0, 1}
    found = check_data(done.recording, 2)
    assert found.is_passed == (how == "ranks")
    assert ("all_reduce of 65536 elements: 1 are wrong" in found.reason) == (how == "ranks-corrupt")
