"""What work is found in the steps of a job: how often it returns, in which arms, and what is only chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tests.verdict.trials import trial

from flatout.records.trial import BASELINE, SpellKind, StepSpell, TrialResult
from flatout.verdict.periodic_work import find_work
from flatout.verdict.periods import Period, common_schedule, period_of_gaps, separate_schedule
from flatout.verdict.window import Window
from flatout.verdict.work import Work


def numbered(
    index: int, first: int, num_steps: int, extra_s: Mapping[int, float], arm: str = BASELINE, **values: object
) -> TrialResult:
    """A trial whose steps take 0.1 s, and some by their number more."""
    steps = [0.1 + extra_s.get(number, 0.0) for number in range(first, first + num_steps)]
    return trial(index, arm, steps, first_step=first, **values)


def unnumbered(index: int, num_steps: int, extra_s: Mapping[int, float], arm: str = BASELINE) -> TrialResult:
    return trial(index, arm, [0.1 + extra_s.get(place, 0.0) for place in range(num_steps)])


def work_of(trials: Sequence[TrialResult]) -> list[Work]:
    return find_work([Window(one) for one in trials])


def spells(kind: SpellKind, numbers: Sequence[int], seconds: float = 1.0) -> tuple[StepSpell, ...]:
    return tuple(StepSpell(number, kind, seconds) for number in numbers)


# ---- gaps and schedules ----


@pytest.mark.parametrize(
    ("gaps", "period", "is_exact"),
    [
        ((15, 15), 15.0, True),
        ((13, 14, 13, 14), 13.5, False),
        ((15, 15, 40), 15.0, True),  # 2 of 3 agree
        ((15, 15, 15, 40, 70), 15.0, True),  # 3 of 5
    ],
)
def test_the_period_is_that_of_most_gaps(gaps: tuple[int, ...], period: float, is_exact: bool) -> None:
    found = period_of_gaps(gaps, fewest=2)
    assert found is not None
    assert (found.steps, found.is_exact) == (pytest.approx(period), is_exact)


@pytest.mark.parametrize("gaps", [(), (15,), (15, 15, 40, 70), (1, 1, 1)])
def test_no_period_where_gaps_are_few_or_differ_or_are_every_step(gaps: tuple[int, ...]) -> None:
    assert period_of_gaps(gaps, fewest=2) is None


def flags(num_steps: int, *places: int) -> np.ndarray:
    return np.isin(np.arange(num_steps), places)


@pytest.mark.parametrize(("misses", "is_found"), [((60,), True), ((40, 60), False)])
def test_a_common_schedule_has_the_work_in_eight_of_ten_due_steps(misses: tuple[int, ...], is_found: bool) -> None:
    """Two trials of steps 0 to 109: due at 10, 30, ..., 90 in each; the second lacks some."""
    number = np.arange(110)
    due = [10, 30, 50, 70, 90]
    first = flags(110, *due)
    second = flags(110, *[place for place in due if place not in {miss + 10 for miss in misses}])
    has_work = [first, second, first & second] if not is_found else [first, first, second]
    schedule = common_schedule([number] * 3, has_work, [np.ones(110, dtype=np.bool_)] * 3)
    assert (schedule is not None and schedule.period.steps == 20) == is_found


def test_one_trial_with_two_long_steps_tells_no_schedule() -> None:
    number = [np.arange(60)]
    assert separate_schedule(number, [flags(60, 10, 40)], [np.ones(60, dtype=np.bool_)]) is None
    found = separate_schedule(number, [flags(60, 10, 30, 50)], [np.ones(60, dtype=np.bool_)])
    assert found is not None and found.period.steps == 20


def test_spikes_at_chance_places_of_numbered_trials_are_no_schedule() -> None:
    """Whatever two chance places are apart, other trials have those steps without a spike."""
    rng = np.random.default_rng(3)
    trials = [numbered(i, 20 + i, 60, {int(rng.integers(25, 75)): 1.0}) for i in range(8)]
    (work,) = work_of(trials)
    assert work.is_random
    assert work.period[BASELINE] is not None and not work.period[BASELINE].is_exact
    assert work.period[BASELINE].steps == pytest.approx(60, rel=0.01)


# ---- hooks ----


def test_the_first_epoch_end_shows_the_period_that_no_window_spans() -> None:
    trials = [numbered(i, 30, 20, {40: 2.0}, spells=spells("epoch_end", [40])) for i in range(2)]
    (work,) = work_of(trials)
    assert work.period[BASELINE] is not None and work.period[BASELINE].steps == 40
    assert work.is_first[0].sum() == 1  # it may have costs that do not return


def test_collections_do_not_come_by_steps_from_the_start() -> None:
    trials = [numbered(i, 30, 20, {40: 2.0}, spells=spells("collection", [40])) for i in range(2)]
    assert work_of(trials)[0].period[BASELINE] is None


def test_the_length_of_the_loader_is_the_period_of_an_epoch_that_no_trial_reached() -> None:
    (work,) = work_of([numbered(0, 20, 20, {}, spells=(), steps_per_epoch=500)])
    assert work.kinds == ("epoch_end",)
    assert work.period[BASELINE] is not None and work.period[BASELINE].steps == 500


@pytest.mark.parametrize(("loader", "period"), [(40, 40), (100, 100), (39, 40), (None, 40)])
def test_the_loader_says_how_long_an_epoch_is_unless_its_end_came_later(loader: int | None, period: int) -> None:
    """A job that resumes within an epoch of 100 steps sees its end after 40; an evaluation's loader may be shorter."""
    trials = [numbered(i, 30, 20, {40: 2.0}, spells=spells("epoch_end", [40]), steps_per_epoch=loader) for i in (0, 1)]
    (work,) = work_of(trials)
    assert work.period[BASELINE] is not None and work.period[BASELINE].steps == period


@pytest.mark.parametrize(("num_common", "num_works"), [(8, 1), (7, 2)])
def test_kinds_in_eight_of_ten_same_steps_are_one_work(num_common: int, num_works: int) -> None:
    ends = [10 * place for place in range(1, 10)]
    saves = ends[:num_common] + ([95] if num_common == 8 else [93, 96])
    seen = (*spells("epoch_end", ends), *spells("checkpoint", saves))
    assert len(work_of([numbered(0, 1, 99, {}, spells=seen)])) == num_works


@pytest.mark.parametrize(("num_steps", "is_absent"), [(21, True), (19, False)])
def test_an_arm_whose_trials_were_longer_than_the_period_has_no_such_work(num_steps: int, is_absent: bool) -> None:
    """The candidate's trial begins at step 0, so the number of its last step is what counts."""
    baseline = numbered(0, 10, 60, {20: 1.0, 40: 1.0, 60: 1.0}, spells=spells("checkpoint", [20, 40, 60]))
    candidate = numbered(1, 0, num_steps, {}, arm="candidate", spells=())
    (work,) = work_of([baseline, candidate])
    assert ("candidate" in work.absent_in) == is_absent
    assert work.per_step("candidate") == (0.0 if is_absent else 1 / 20)


def with_period(index: int, ends: Sequence[int], arm: str, kind: SpellKind = "evaluation") -> TrialResult:
    return numbered(index, 10, 100, dict.fromkeys(ends, 1.0), arm=arm, spells=spells(kind, ends))


def test_an_arm_with_another_length_of_epoch_has_its_own_period() -> None:
    """Two commands that are compared may have loaders of other lengths."""
    trials = [with_period(i, range(15, 110, 15), BASELINE, "epoch_end") for i in range(2)]
    (work,) = work_of([*trials, with_period(2, range(16, 110, 16), "other", "epoch_end")])
    assert work.period["other"] is not None and work.period["other"].steps == 16
    assert work.period[BASELINE] is not None and work.period[BASELINE].steps == 15
    assert work.is_due[2].sum() == 6


@pytest.mark.parametrize(("mean", "own"), [(16.5, True), (15.5, False)])
def test_a_mean_period_is_an_arms_own_only_where_it_clearly_differs(mean: float, own: bool) -> None:
    """Collections come every 13 or 14 steps; another mean within a fifth of that is chance."""
    every = np.cumsum([13, 14, 13, 14, 13, 14]).tolist()
    others = np.cumsum([round(mean - 0.5), round(mean + 0.5)] * 2).tolist()
    (work,) = work_of(
        [
            *(with_period(i, every, BASELINE, "collection") for i in range(3)),
            with_period(3, others, "other", "collection"),
        ]
    )
    assert work.period[BASELINE] is not None and work.period["other"] is not None
    assert work.period[BASELINE].steps == pytest.approx(13.5, abs=0.3)
    assert (work.period["other"].steps == pytest.approx(mean, abs=0.3)) == own


def test_what_every_trial_has_once_at_the_same_step_may_come_once_per_job() -> None:
    """A last batch of another size is compiled at the first epoch's end, and never again."""
    trials = [numbered(i, 10, 40, {15: 5.0}, spells=spells("compilation", [15])) for i in range(6)]
    (work,) = work_of(trials)
    assert work.period[BASELINE] is None


# ---- long steps without a hook ----


@pytest.mark.parametrize(("extra_s", "is_long"), [(0.051, True), (0.049, False)])
def test_a_long_step_takes_half_as_long_again(extra_s: float, is_long: bool) -> None:
    places = dict.fromkeys((5, 15, 25), extra_s)
    assert bool(work_of([unnumbered(0, 30, places)])) == is_long


@pytest.mark.parametrize(("num_long", "is_work"), [(7, True), (8, False)])
def test_what_a_third_of_the_steps_have_is_the_job_itself(num_long: int, is_work: bool) -> None:
    """A loader with too few workers makes every third or fourth step long."""
    places = dict.fromkeys(range(0, 3 * num_long, 3), 0.3)
    assert bool(work_of([unnumbered(0, 23, places)])) == is_work


@pytest.mark.parametrize(("epoch_s", "num_works"), [(0.41, 2), (0.39, 1)])
def test_long_steps_of_twice_the_size_are_other_work(epoch_s: float, num_works: int) -> None:
    """A collection every 13 steps or so and one epoch's end: the end does not come every 13 steps."""
    collections = dict.fromkeys((4, 17, 31, 44, 57), 0.2)
    found = work_of([unnumbered(0, 60, {**collections, 50: epoch_s})])
    assert len(found) == num_works
    if num_works == 2:
        assert found[0].period[BASELINE] is None  # the epoch: seen once
        assert found[1].period[BASELINE] is not None and found[1].period[BASELINE].steps == pytest.approx(13.25)


@pytest.mark.parametrize(("num_steps", "is_absent"), [(100, True), (98, False)])
def test_spikes_that_an_arm_never_has_are_gone_only_if_that_is_not_chance(num_steps: int, is_absent: bool) -> None:
    """Five spikes in 100 steps: an arm with none in 100 would have had five."""
    spiky = unnumbered(0, 100, dict.fromkeys((3, 20, 29, 61, 90), 1.0))
    (work,) = work_of([spiky, unnumbered(1, num_steps, {}, arm="candidate")])
    assert work.is_random
    assert ("candidate" in work.absent_in) == is_absent


def test_a_checkpoint_each_20_hides_no_epoch_each_40() -> None:
    """Every second checkpoint is in the same step as an epoch's end."""
    extra_s = {number: 0.8 + (2.4 if number % 40 == 0 else 0.0) for number in range(20, 300, 20)}
    trials = [numbered(i, 30 + 3 * i, 130, extra_s) for i in range(5)]
    periods = sorted(work.period[BASELINE].steps for work in work_of(trials) if work.period[BASELINE] is not None)
    assert periods in ([20, 40], [40, 40])  # 40 apart and 20 later is the same: each checkpoint, with and without


def test_an_old_journal_has_the_ends_of_epochs_by_place() -> None:
    steps = [0.1] * 40
    trials = [trial(i, BASELINE, steps, epoch_ends=(3, 18, 33)) for i in range(2)]
    (work,) = work_of(trials)
    assert work.kinds == ("epoch_end",)
    assert work.period[BASELINE] is not None and work.period[BASELINE].steps == 15


def test_steps_that_the_recorder_disturbed_have_numbers_too() -> None:
    window = Window(trial(0, BASELINE, [0.1] * 4, first_step=10, unmeasured_steps=(11, 13)))
    assert window.number.tolist() == [10, 12, 14, 15]


# ---- more thresholds ----


@pytest.mark.parametrize(("long_s", "is_long"), [(0.1891, True), (0.1888, False)])
def test_where_steps_differ_a_long_one_is_six_deviations_above_the_others(long_s: float, is_long: bool) -> None:
    """Steps of 90 and 110 ms: the median absolute deviation is 10 ms, so six deviations are 89 ms."""
    steps = [0.09, 0.11] * 20 + [long_s, 0.09]
    assert bool(work_of([trial(0, BASELINE, steps)])) == is_long


@pytest.mark.parametrize(("num_others", "is_found"), [(7, True), (8, False)])
def test_a_schedule_explains_three_of_ten_long_steps(num_others: int, is_found: bool) -> None:
    others = [151, 152, 154, 158, 167, 183, 216, 281][:num_others]
    long_steps = flags(300, 20, 150, 280, *others)
    schedule = separate_schedule([np.arange(300)], [long_steps], [np.ones(300, dtype=np.bool_)])
    assert (schedule is not None and schedule.period.steps == 130) == is_found


@pytest.mark.parametrize(("num_longer", "num_works"), [(3, 2), (2, 1)])
def test_three_steps_that_the_work_in_them_does_not_explain_have_more_work(num_longer: int, num_works: int) -> None:
    longer = range(10, 10 * (num_longer + 1))  # not the first in the window, which may cost more
    extra_s = {place: 1.5 if place in longer else 0.8 for place in range(5, 100, 10)}
    assert len(work_of([unnumbered(0, 100, extra_s)])) == num_works


@pytest.mark.parametrize(("first", "has_rate"), [(2, True), (6, False)])
def test_three_collections_in_the_windows_have_a_rate(first: int, has_rate: bool) -> None:
    """They come at no regular gap, in the steps 5, 9 and 30; a window from step 6 on has two of them."""
    window = numbered(0, first, 40, {9: 1.0, 30: 1.0}, spells=spells("collection", [5, 9, 30]))
    (work,) = work_of([window])
    assert (work.period[BASELINE] is not None) == has_rate


# ---- thresholds ----


def test_a_period_of_two_steps_is_one() -> None:
    found = period_of_gaps((2, 2, 2), fewest=2)
    assert found is not None and found.steps == 2


def test_a_schedule_that_thirteen_of_fifteen_due_steps_keep_is_one() -> None:
    due, everything = (10, 30, 50, 70, 90), np.ones(110, dtype=np.bool_)
    has_work = [flags(110, 10, 30, 70, 90), flags(110, 10, 30, 50, 70), flags(110, *due)]
    schedule = common_schedule([np.arange(110)] * 3, has_work, [everything] * 3)
    assert schedule is not None and schedule.period.steps == 20


def test_of_works_that_take_equally_long_three_are_told_apart() -> None:
    """What is left over is one work more, which has no schedule: only the steps that were long are its own."""
    schedules = ((29, 3), (31, 5), (37, 11), (41, 13))
    is_due = {number for steps, phase in schedules for number in range(phase, 400) if number % steps == phase}
    trials = [numbered(i, 40 + 7 * i, 200, dict.fromkeys(is_due, 1.0)) for i in range(3)]
    works = work_of(trials)
    assert [work.period[BASELINE].steps for work in works[:3]] == [29, 31, 37]
    fourth = sum(number % 41 == 13 for trial in trials for number in Window(trial).number)
    assert len(works) == 4 and sum(int(due.sum()) for due in works[3].is_due.values()) < fourth


def test_a_work_that_is_short_twice_is_still_one_work() -> None:
    """What is usual is the lower quartile of the steps with the work, and the others are not far above that."""
    extra_s = {number: 0.5 if number < 30 else 1.0 for number in range(22, 80, 5)}
    (work,) = work_of([numbered(i, 20, 60, extra_s) for i in range(2)])
    assert work.period[BASELINE].steps == 5


@pytest.mark.parametrize(("first_of_second", "is_random"), [(20, True), (80, False)])
def test_long_steps_come_by_chance_if_another_trial_has_the_same_steps_and_there_they_are_not_long(
    first_of_second: int, is_random: bool
) -> None:
    second = {first_of_second + 21: 1.0, first_of_second + 51: 1.0}
    (work,) = work_of([numbered(0, 20, 60, {30: 1.0, 55: 1.0}), numbered(1, first_of_second, 60, second)])
    assert work.is_random is is_random


@pytest.mark.parametrize(
    ("between", "is_found"), [((13, 26, 34, 47, 53, 68), True), ((13, 21, 26, 34, 41, 47, 53, 60, 68), False)]
)
def test_a_period_is_found_with_two_other_long_steps_in_it_and_not_with_three(
    between: tuple[int, ...], is_found: bool
) -> None:
    has_work = flags(80, 10, 30, 50, 70, *between)
    schedule = common_schedule([np.arange(80)] * 2, [has_work] * 2, [np.ones(80, dtype=np.bool_)] * 2)
    assert (schedule is not None and schedule.period.steps == 20) == is_found


@pytest.mark.parametrize(("num_trials", "is_found"), [(1, False), (2, True)])
def test_two_trials_with_the_same_steps_show_a_common_schedule(num_trials: int, is_found: bool) -> None:
    of_trials = [np.arange(80)] * num_trials, [flags(80, 10, 30, 50, 70)] * num_trials
    assert (common_schedule(*of_trials, [np.ones(80, dtype=np.bool_)] * num_trials) is not None) == is_found


# ---- long steps in bursts, as where batches come late ----


def test_long_steps_in_bursts_come_as_often_as_they_are_counted() -> None:
    """Their gaps are of one and two steps, with one that is long: that is no period of a step and a half."""
    bursts = (10, 11, 13, 14, 16, 40, 41, 43, 44, 46)
    (work,) = work_of([unnumbered(0, 60, dict.fromkeys(bursts, 0.3))])
    assert work.is_random and work.period[BASELINE] == Period(steps=6.0, is_exact=False)


@pytest.mark.parametrize(("num_steps", "period"), [(53, 10.0), (54, 13.5)])
def test_a_period_that_holds_for_three_quarters_of_the_steps_is_one(num_steps: int, period: float) -> None:
    """Gaps of 9, 10 and 11 steps, and nothing after them."""
    (work,) = work_of([unnumbered(0, num_steps, dict.fromkeys((5, 14, 24, 35), 0.3))])
    assert work.period[BASELINE] == Period(steps=period, is_exact=False)


@pytest.mark.parametrize(("num_without", "is_exact"), [(1, True), (2, False)])
def test_a_schedule_that_one_of_five_windows_lacks_is_one(num_without: int, is_exact: bool) -> None:
    """In the others, what is due each 6 steps is part of the regular step, or comes by chance."""
    with_work = dict.fromkeys(range(2, 60, 6), 0.3)
    trials = [unnumbered(index, 60, with_work if index >= num_without else {}) for index in range(5)]
    (work,) = work_of(trials)
    period = work.period[BASELINE]
    assert period is not None and period.is_exact == is_exact
    assert period.steps == (6 if is_exact else pytest.approx(300 / 30))


@pytest.mark.parametrize(("num_long", "is_work"), [(20, True), (21, False), (30, False), (44, False), (45, True)])
def test_an_arm_of_whose_windows_one_has_too_many_long_steps_has_none(num_long: int, is_work: bool) -> None:
    """More than 20 of 60 are part of the regular step, and so are the 10 of the other window.

    With 45 or more, the whole window was slow.
    """
    other = unnumbered(1, 60, dict.fromkeys(range(num_long), 0.3))
    assert work_of([unnumbered(0, 60, dict.fromkeys(range(0, 60, 6), 0.3))])
    assert bool(work_of([unnumbered(0, 60, dict.fromkeys(range(0, 60, 6), 0.3)), other])) == is_work


@pytest.mark.parametrize(("places", "has_rate"), [((81, 89, 91), True), ((81, 89), False)])
def test_long_steps_at_the_same_places_of_all_trials_have_a_rate_if_they_go_on(
    places: tuple[int, ...], has_rate: bool
) -> None:
    """Three in each half of a window; fewer in the second half may belong to the beginning."""
    long_steps = dict.fromkeys((10, 17, 25, 36, 39, *places), 0.3)
    (work,) = work_of([numbered(index, 0, 100, long_steps) for index in range(2)])
    period = work.period[BASELINE]
    assert (period is not None) == has_rate
    if period is not None:
        assert period.steps == pytest.approx(100 / len(long_steps))


@pytest.mark.parametrize(("regular_s", "is_hidden"), [(0.5, False), (0.7, True)])
def test_an_arm_with_steps_of_which_no_long_one_could_be_told_has_them_in_its_regular_step(
    regular_s: float, is_hidden: bool
) -> None:
    """0.3 s more are not half as much again as 0.7 s, so they may be in such steps; more than 0.25 s would be seen."""
    fast = unnumbered(0, 60, dict.fromkeys((5, 14, 24, 35), 0.3), arm="fast")
    slow = trial(1, BASELINE, [regular_s] * 20)
    (work,) = work_of([fast, slow])
    assert work.absent_in == ({BASELINE} if is_hidden else set())
