"""New priorities give the wanted order, and change few jobs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flatout.schedule.live.priorities import HIGHEST, new_priorities


def ordered(current: dict[str, int], new: dict[str, int]) -> list[str]:
    after = current | new
    return sorted(after, key=lambda job: -after[job])


@given(
    st.lists(st.integers(1, 4_294_967_293), min_size=1, max_size=12)
    | st.lists(st.integers(1, 12), min_size=1, max_size=12)
    | st.lists(st.integers(HIGHEST - 6, HIGHEST + 90), min_size=1, max_size=12),
    st.randoms(),
)
def test_the_order_is_as_wanted(values: list[int], random: object) -> None:
    current = {str(number): value for number, value in enumerate(values)}
    wanted = list(current)
    random.shuffle(wanted)  # type: ignore[attr-defined]
    new = new_priorities(wanted, current)
    after = current | new
    assert ordered(current, new) == wanted
    assert len(set(after.values())) == len(after)
    assert all(after[job] >= 1 for job in new)
    assert all(new[job] != current[job] for job in new)
    assert new_priorities(wanted, after) == {}


def test_a_job_that_gets_its_own_number_again_is_not_changed() -> None:
    current = {str(number): value for number, value in enumerate([1, 1, 3, 2, 1, 6, 2, 1, 10])}
    wanted = ["8", "1", "2", "3", "5", "7", "4", "0", "6"]
    new = new_priorities(wanted, current)
    assert ordered(current, new) == wanted
    assert all(new[job] != current[job] for job in new)


def test_what_is_in_order_stays() -> None:
    assert new_priorities(["a", "b", "c"], {"a": 9, "b": 8, "c": 1}) == {}


def test_one_job_is_moved_to_the_front_alone() -> None:
    new = new_priorities(["d", "a", "b", "c"], {"a": 4_294_901_759, "b": 4_294_901_758, "c": 4_294_901_757, "d": 5})
    assert list(new) == ["d"]


def test_one_job_is_moved_between_neighbours_by_moving_as_few_others_as_possible() -> None:
    new = new_priorities(["a", "e", "b", "c", "d"], {"a": 105, "b": 104, "c": 103, "d": 102, "e": 101})
    assert set(new) == {"a", "e"}  # `a` goes up to make room, not `b`, `c` and `d` down


def test_many_jobs_are_quick() -> None:
    current = {str(number): 4_294_901_759 - number for number in range(500)}
    wanted = sorted(current, key=lambda job: int(job) * 7919 % 500)
    assert ordered(current, new_priorities(wanted, current)) == wanted
