"""Journals of two tunings on two H200, judged again: nanoGPT over TCP, and ImageNet with two loader workers a rank.

Both were cut short by a budget of five minutes. They are of an earlier form of the key, so their trials are read in
their order; what they measured is as it was.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.trial.training import changes

from flatout.records.trial import BASELINE, Pair, TrialResult
from flatout.records.verdict import NoiseFloor
from flatout.trial.gates import check_losses, check_memory
from flatout.trial.journal import Heading, Journal
from flatout.verdict.judge import judge
from flatout.verdict.noise import noise_floor
from flatout.verdict.screening import screen

GOLDEN = Path(__file__).with_name("golden")
# The change that was confirmed, and its family.
JOBS = {"nanogpt_tcp": ("nccl-sockets=2x2+8", "nccl"), "imagenet_loader": ("dataloader-workers=15", "dataloader")}


def lines(name: str) -> list[bytes]:
    return (GOLDEN / f"{name}.jsonl").read_bytes().splitlines()


def trials(name: str, tmp_path: Path) -> list[TrialResult]:
    """In the order in which they ran: of an index that was run again after an interruption, the last."""
    import msgspec

    copy = tmp_path / "journal.jsonl"
    copy.write_bytes((GOLDEN / f"{name}.jsonl").read_bytes())
    journal = Journal(copy, msgspec.json.decode(lines(name)[0], type=Heading))
    assert journal.num_damaged == 0 and journal.num_before == len(lines(name)) - 1
    keys = [msgspec.json.decode(line)["key"] for line in lines(name)[1:]]
    recalled = [journal.recall(key) for key in keys]
    found = {trial.index: trial for trial in recalled if trial is not None}
    return [found[index] for index in sorted(found)]


def pairs(name: str, tmp_path: Path) -> list[Pair]:
    found = []
    made = trials(name, tmp_path)[6:]
    for first, second in zip(made[::2], made[1::2], strict=True):
        baseline, candidate = (first, second) if first.arm == BASELINE else (second, first)
        found.append(Pair(baseline=baseline, candidate=candidate))
    return found


def floor(name: str, tmp_path: Path) -> NoiseFloor:
    made = trials(name, tmp_path)[:3]
    return noise_floor(made, objective="s_per_sample" if made[0].samples_per_step else "step_s")


@pytest.mark.parametrize("name", JOBS)
def test_journals_hold_nothing_of_the_machine_that_they_are_of(name: str) -> None:
    text = (GOLDEN / f"{name}.jsonl").read_text()
    assert not re.search(r'"/|[ =]/(?:home|root|tmp|mnt|data|usr|opt)/|hostname|\b\d+(?:\.\d+){3}\b', text.replace(
        "127.0.0.1", ""
    ))  # fmt: skip


@pytest.mark.parametrize(("name", "least", "most"), [("nanogpt_tcp", 2.9, 3.4), ("imagenet_loader", 3.8, 4.5)])
def test_three_pairs_show_how_much_faster_but_are_too_few_to_claim_it(
    tmp_path: Path, name: str, least: float, most: float
) -> None:
    found = pairs(name, tmp_path)
    assert [pair.order for pair in found] == ["AB", "BA", "AB"]
    assert {pair.candidate.arm for pair in found} == {JOBS[name][0]}
    known = floor(name, tmp_path)
    verdict = judge(found, objective=known.objective, floor=known, fresh_after=5)
    assert (verdict.verdict, verdict.num_pairs, verdict.next_look, verdict.num_void) == ("undecided", 3, 4, 0)
    assert verdict.speedup is not None and least < verdict.speedup < most
    ratios = [sum(pair.baseline.step_s) / sum(pair.candidate.step_s) for pair in found]
    assert all(least - 0.3 < ratio < most + 0.3 for ratio in ratios)


@pytest.mark.parametrize("name", JOBS)
def test_one_trial_each_already_tells_whom_to_confirm(tmp_path: Path, name: str) -> None:
    made = trials(name, tmp_path)
    best, other = screen(made[3:7], objective=floor(name, tmp_path).objective)
    assert best.arm == JOBS[name][0] and best.speedup > 2.5
    assert other.speedup < 1.02


@pytest.mark.parametrize("name", JOBS)
def test_all_candidates_trained_what_the_job_trains(tmp_path: Path, name: str) -> None:
    made = trials(name, tmp_path)
    _, family = JOBS[name]
    for candidate in made[3:]:
        if candidate.arm != BASELINE:
            for gate in (check_losses(candidate, made[:3], changes(family=family)), check_memory(candidate, made[:3])):
                assert gate.is_passed, (candidate.index, gate.reason)


def test_losses_of_nanogpt_that_are_off_by_one_update_would_have_been_seen(tmp_path: Path) -> None:
    import msgspec

    made = trials("nanogpt_tcp", tmp_path)
    late = msgspec.structs.replace(made[4], losses=(made[4].losses[0], *made[4].losses[:-1]))
    assert not check_losses(late, made[:3], changes(family="nccl")).is_passed
