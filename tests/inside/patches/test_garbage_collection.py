"""The patch of the garbage collector: which collections happen in which steps, by `gc.callbacks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.inside.patches.runs import Done, run

pytestmark = pytest.mark.usefixtures("warm")

AFTER = 10
Collections = list[tuple[int, int]]  # step and generation


def collections(done: Done, rank: int = 0) -> Collections:
    words = [word.split(":") for word in done.said(f"collections-{rank}").split()]
    return [(int(step), int(generation)) for step, generation in words]


def garbage(tmp_path: Path, own: str, how: str, ranks: int = 1, **parameters: Any) -> Done:
    patch = ("garbage_collection", {"how": how, "after": AFTER, **parameters})
    done = run(tmp_path / "patched", "garbage", own, patches=[patch], ranks=ranks)
    assert done.code == 0, done.errors
    assert done.log == ""
    return done


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Done:
    done = run(tmp_path_factory.mktemp("plain") / "recording", "garbage")
    assert done.code == 0, done.errors
    return done


def test_without_the_patch_python_collects_all_the_time(plain: Done) -> None:
    """300 cycles a step and a threshold of 700: about every other step."""
    assert len(collections(plain)) >= 20
    assert {generation for _, generation in collections(plain)} >= {0, 1}
    assert plain.said("child") == "True"


def test_off_collects_once_after_the_warm_up_and_never_again(plain: Done, tmp_path: Path) -> None:
    done = garbage(tmp_path, "", "off")
    assert done.losses == plain.losses
    found = collections(done)
    assert [one for one in found if one[0] < AFTER] == [one for one in collections(plain) if one[0] < AFTER]
    assert [one for one in found if one[0] >= AFTER][-1] == (AFTER, 2)
    assert max(step for step, _ in found) == AFTER
    assert done.said("enabled-0").split()[0] == "False"
    details = done.reports["garbage_collection", 0]["details"]
    assert details["full_collections"] == 1
    # 50 steps of 300 cycles, none of which was freed; a few more objects are the interpreter's own.
    assert 15_000 <= details["new_objects"] <= 16_000


def test_a_process_that_is_forked_later_collects_as_before(tmp_path: Path) -> None:
    assert garbage(tmp_path, "", "off").said("child") == "True"


def test_freeze_leaves_the_collections_and_takes_the_objects_out_of_them(plain: Done, tmp_path: Path) -> None:
    done = garbage(tmp_path, "collect", "freeze")
    assert done.losses == plain.losses
    found = collections(done)
    assert (AFTER, 2) in found
    assert (40, 2) in found  # the script's own
    assert max(step for step, _ in found) > 50
    assert done.said("enabled-0").split()[0] == "True"
    report = done.reports["garbage_collection", 0]
    assert report["applied"] is True
    assert report["details"]["collections"] == 1
    assert report["details"]["frozen_objects"] > 20_000  # the script's long-lived lists
    assert int(plain.said("collectable")) > 20_000 > int(done.said("collectable"))


def test_two_ranks_collect_at_the_same_steps_though_they_create_garbage_at_other_rates(tmp_path: Path) -> None:
    apart = run(tmp_path / "plain", "garbage", ranks=2)
    assert [step for step, _ in collections(apart, 0)] != [step for step, _ in collections(apart, 1)]
    done = garbage(tmp_path, "", "together", ranks=2, every=5)
    after = [[one for one in collections(done, rank) if one[0] >= AFTER] for rank in (0, 1)]
    # Every 5 steps, and a full collection at every tenth of these.
    expected = [(AFTER, 2), *((step, 2 if step == 50 else 1) for step in range(15, 61, 5))]
    assert [one for one in after[0] if one != (AFTER, 0) and one != (AFTER, 1)] == expected
    assert [one for one in after[1] if one != (AFTER, 0) and one != (AFTER, 1)] == expected
    assert done.losses == apart.losses
    for rank in (0, 1):
        details = done.reports["garbage_collection", rank]["details"]
        assert details == {"full_collections": 2, "young_collections": 9}


@pytest.mark.parametrize("own", ["manual", "manual_threshold"])
def test_freeze_shortens_the_collections_of_a_script_that_decides_when_to_collect(tmp_path: Path, own: str) -> None:
    done = garbage(tmp_path, own, "freeze")
    assert collections(done) == [(AFTER, 2), (40, 2)]  # ours before freezing, and the script's own
    assert int(done.said("collectable")) < 20_000
    assert done.said("enabled-0").split()[0] == str(own == "manual_threshold")
    assert done.reports["garbage_collection", 0]["details"]["frozen_objects"] > 20_000


@pytest.mark.parametrize("how", ["off", "together"])
@pytest.mark.parametrize("own", ["off", "threshold"])
def test_a_script_that_turns_the_collector_off_itself_is_left_alone(tmp_path: Path, own: str, how: str) -> None:
    done = garbage(tmp_path, own, how, **({"every": 5} if how == "together" else {}))
    assert collections(done) == []
    assert int(done.said("collectable")) > 20_000
    report = done.reports["garbage_collection", 0]
    assert report["applied"] is False
    assert report["reason"] == "the script turns the garbage collector off itself"


def test_a_script_that_turns_the_collector_on_again_keeps_it(tmp_path: Path) -> None:
    done = garbage(tmp_path, "on", "together", every=5)
    assert (30, 1) not in collections(done)
    assert max(step for step, _ in collections(done)) > 40
    assert done.said("enabled-0").split()[0] == "True"
    report = done.reports["garbage_collection", 0]
    assert report["notes"] == ["the script turns the garbage collector on itself"]


@pytest.mark.parametrize(("after", "is_applied"), [(60, True), (61, False)])
def test_it_begins_with_the_step_that_it_is_given(tmp_path: Path, after: int, is_applied: bool) -> None:
    done = garbage(tmp_path, "", "off", after=after)
    assert done.reports["garbage_collection", 0]["applied"] is is_applied
    assert done.said("enabled-0").split()[0] == str(not is_applied)
