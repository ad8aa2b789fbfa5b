from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import msgspec
import pytest
from tests.verdict.trials import trial

from flatout.change.catalogue import all_changes
from flatout.change.combine import combine
from flatout.errors import InputError, OutputError
from flatout.records.change import JobFacts
from flatout.records.trial import GradientNorms, StepSpell
from flatout.trial.journal import Heading, Journal, Profile
from flatout.tune.trial_keys import trial_key

HEADING = Heading(tool_version="1", command=("python", "train.py"), options={"num_steps": "30"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_trials_come_back_once_each_in_their_order(path: Path) -> None:
    first = Journal(path, HEADING)
    assert (first.num_before, first.recall("a")) == (0, None)
    for key, index in (("a", 0), ("b", 1), ("a", 2)):
        first.add(key, trial(index))
    again = Journal(path, HEADING)
    assert (again.num_before, again.num_damaged) == (3, 0)
    assert [again.recall(key) for key in ("a", "a", "a", "b", "c")] == [trial(0), trial(2), None, trial(1), None]


def test_the_numbers_and_the_work_of_steps_come_back(path: Path) -> None:
    spells = (StepSpell(15, "epoch_end", 0.0), StepSpell(15, "evaluation", 2.25))
    result = trial(0, first_step=12, unmeasured_steps=(14,), spells=spells, steps_per_epoch=15)
    Journal(path, HEADING).add("a", result)
    assert Journal(path, HEADING).recall("a") == result


def test_a_trial_of_an_earlier_version_has_steps_without_numbers(path: Path) -> None:
    Journal(path, HEADING).add("a", trial(0, step_s=(0.1, 0.2)))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name in ("first_step", "unmeasured_steps", "spells", "steps_per_epoch"):
        del lines[1]["result"][name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Journal(path, HEADING).recall("a") == trial(0, step_s=(0.1, 0.2))


def test_what_is_added_in_a_resumed_tuning_is_there_the_next_time_beside_what_was(path: Path) -> None:
    Journal(path, HEADING).add("a", trial(0))
    Journal(path, HEADING).add("a", trial(1))
    last = Journal(path, HEADING)
    assert [last.recall("a"), last.recall("a")] == [trial(0), trial(1)]
    assert path.read_text().count("heading") == 1


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_last_line_that_was_cut_short_is_run_again(path: Path, cut: int) -> None:
    journal = Journal(path, HEADING)
    journal.add("a", trial(0))
    whole = path.read_bytes()
    journal.add("b", trial(1))
    path.write_bytes(path.read_bytes()[: max(len(path.read_bytes()) - cut, len(whole) + 1)])
    again = Journal(path, HEADING)
    assert again.recall("a") == trial(0)
    if cut > 1:  # else only the line's end is missing
        assert (again.num_damaged, again.recall("b")) == (1, None)
        again.add("b", trial(1))
    assert Journal(path, HEADING).recall("b") == trial(1)


def test_a_heading_that_was_cut_short_is_written_again(path: Path) -> None:
    Journal(path, HEADING)
    path.write_bytes(path.read_bytes()[:20])
    Journal(path, HEADING).add("a", trial(0))
    assert Journal(path, HEADING).recall("a") == trial(0)


@pytest.mark.parametrize(
    ("other", "how"),
    [
        ({"command": ("python", "other.py")}, f": its command is {shlex.join(HEADING.command)}"),
        ({"tool_version": "2"}, f": it was made by flatout {HEADING.tool_version}, and this is 2"),
        ({"options": {"num_steps": "31"}}, ", with other --steps"),
        ({"options": {**HEADING.options, "warmup": "s3cr3t"}}, ", with other --warmup"),
    ],
)
def test_the_journal_of_another_tuning_is_refused_and_left_as_it_is(
    path: Path, other: dict[str, object], how: str
) -> None:
    Journal(path, HEADING).add("a", trial(0))
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        Journal(path, msgspec.structs.replace(HEADING, **other))
    assert str(caught.value) == f"{path} is the journal of another tuning run{how}"
    assert path.read_bytes() == before


def test_a_file_that_is_no_journal_of_ours_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_text('{"text": "dear diary"}\n{"text": "no new line at the end"}')
    before = path.read_bytes()
    with pytest.raises(InputError):
        Journal(path, HEADING)
    assert path.read_bytes() == before


def test_norms_of_gradients_that_are_no_finite_numbers_come_back(path: Path) -> None:
    norms = (1.5, math.nan, math.inf)
    clipped = GradientNorms(num_parameters=3, norms=norms, unclipped=norms[::-1], faint=(1, 2), rank_spread=0.5)
    gradients = (clipped, GradientNorms(num_parameters=3, norms=norms, without=(2,), faint=(1, 2), rank_spread=0.5))
    Journal(path, HEADING).add("a", trial(0, gradients=gradients))
    found = Journal(path, HEADING).recall("a")
    assert found is not None and repr(found.gradients) == repr(gradients)


def test_a_journal_from_before_norms_were_known_before_clipping_is_read(path: Path) -> None:
    gradients = (GradientNorms(num_parameters=3, norms=(1.0, 2.0)),)
    Journal(path, HEADING).add("a", trial(0, gradients=gradients))
    text = path.read_text()
    assert '"unclipped":[],' in text
    path.write_text(text.replace('"unclipped":[],', ""))
    again = Journal(path, HEADING)
    found = again.recall("a")
    assert again.num_damaged == 0 and found is not None and found.gradients == gradients


def test_losses_that_are_no_finite_numbers_come_back(path: Path) -> None:
    """Else the trial would be run again, and its successor taken for it."""
    losses = (1.5, math.nan, math.inf, -math.inf)
    Journal(path, HEADING).add("a", trial(0, losses=losses))
    again = Journal(path, HEADING)
    found = again.recall("a")
    assert again.num_damaged == 0 and found is not None
    assert [repr(loss) for loss in found.losses] == [repr(loss) for loss in losses]


def test_what_is_predicted_of_a_change_plays_no_part_in_its_key() -> None:
    change = next(one for one in all_changes(JobFacts(cores_allowed=8.0)) if one.knob.name == "dataloader-workers")
    plain, predicted = (
        combine([msgspec.structs.replace(change, predicted_speedup=bound, predicted_from=source)])
        for bound, source in ((None, ()), (2.0, ("data-loading",)))
    )
    assert plain != predicted
    assert trial_key(plain, 30) == trial_key(predicted, 30)


def test_keys_differ_where_what_is_run_differs() -> None:
    found = list(all_changes(JobFacts(cores_allowed=64.0, num_ranks=2, device="cuda")))
    keys = {trial_key(combine([]), 30), trial_key(combine([]), 31)}
    sets = [one for one in found if not one.knob.requires]
    keys |= {trial_key(combine([change]), 30) for change in sets}
    assert len(keys) == 2 + len(sets)


def test_what_failed_is_run_again_when_the_tuning_goes_on(path: Path) -> None:
    """Its cause may be fixed since; a lack of memory is not."""
    journal = Journal(path, HEADING)
    journal.add("a", msgspec.structs.replace(trial(0), outcome="failed", step_s=()))
    journal.add("b", msgspec.structs.replace(trial(1), outcome="out_of_memory", step_s=()))
    again = Journal(path, HEADING)
    assert again.recall("a") is None
    found = again.recall("b")
    assert found is not None and found.outcome == "out_of_memory"


def test_the_journal_of_a_tuning_that_made_no_trial_gives_way(path: Path) -> None:
    Journal(path, HEADING)
    other = msgspec.structs.replace(HEADING, command=("python", "right.py"))
    Journal(path, other).add("a", trial(0))
    assert Journal(path, other).recall("a") == trial(0)
    with pytest.raises(InputError, match="journal of another tuning"):
        Journal(path, HEADING)


def test_the_journal_of_a_tuning_whose_trials_only_failed_gives_way(path: Path) -> None:
    failed = msgspec.structs.replace(trial(0), outcome="failed", step_s=())
    wrong = Journal(path, HEADING)
    wrong.add("a", failed)
    wrong.add("a", failed)
    right = msgspec.structs.replace(HEADING, command=("python", "right.py"))
    taken = Journal(path, right)
    assert (taken.num_replaced, taken.num_before, taken.session) == (2, 0, 0)
    taken.add("a", trial(0))
    assert Journal(path, right).recall("a") == trial(0)
    assert path.read_text().count("heading") == 1


@pytest.mark.parametrize("more", ["trial", "out of memory", "profile", "damaged"])
def test_one_that_says_anything_beside_failures_does_not_give_way(path: Path, more: str) -> None:
    """A line that cannot be read may be a trial."""
    journal = Journal(path, HEADING)
    journal.add("a", msgspec.structs.replace(trial(0), outcome="failed", step_s=()))
    if more == "trial":
        journal.add("a", trial(1))
    elif more == "out of memory":
        journal.add("b", msgspec.structs.replace(trial(1), outcome="out_of_memory", step_s=()))
    elif more == "profile":
        journal.add_profile(Profile(key="baseline", folder="profile-003", took_s=12.5))
    else:
        with path.open("a") as file:
            file.write('{"type": "trial", "key": "a", "resu\n')
    before = path.read_bytes()
    with pytest.raises(InputError, match="journal of another tuning"):
        Journal(path, msgspec.structs.replace(HEADING, command=("python", "right.py")))
    assert path.read_bytes() == before


def test_a_journal_with_results_beside_it_does_not_give_way(path: Path) -> None:
    Journal(path, HEADING).add("a", msgspec.structs.replace(trial(0), outcome="failed", step_s=()))
    with pytest.raises(InputError, match="journal of another tuning"):
        Journal(path, msgspec.structs.replace(HEADING, command=("python", "right.py")), may_replace=False)


def test_a_journal_that_cannot_be_written_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path, HEADING)
    monkeypatch.setattr(journal, "path", Path("/dev/full"))
    with pytest.raises(OutputError, match="/dev/full cannot be written to: no space left on device"):
        journal.add("a", trial(0))


def test_a_profile_comes_back_as_often_as_it_is_asked_for(path: Path) -> None:
    profile = Profile(key="baseline", folder="profile-003", took_s=12.5)
    Journal(path, HEADING).add_profile(profile)
    again = Journal(path, HEADING)
    assert again.recall_profile("baseline") == again.recall_profile("baseline") == profile
    assert again.recall_profile("other") is None
    assert again.num_before == 0


def test_each_resumed_tuning_is_a_session_of_its_own(path: Path) -> None:
    for session in range(3):
        journal = Journal(path, HEADING)
        assert journal.session == session
        journal.add("a", msgspec.structs.replace(trial(session), session=journal.session))
    assert Journal(path, HEADING).session == 3


def test_a_session_in_which_trials_only_failed_counts_too(path: Path) -> None:
    failed = msgspec.structs.replace(trial(0), outcome="failed", step_s=())
    Journal(path, HEADING).add("a", failed)
    assert Journal(path, HEADING).session == 1


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ({"max_rounds": "6"}, {"max_rounds": "50"}, True),  # its default has changed
        ({}, {"blocks": "False"}, True),  # an earlier version had no such option
        ({}, {"blocks": "True"}, False),
        ({"blocks": "True"}, {"blocks": "False"}, False),
    ],
)
def test_a_journal_of_an_earlier_version_is_of_the_same_tuning_if_new_options_have_their_defaults(
    path: Path, before: dict[str, str], now: dict[str, str], is_same: bool
) -> None:
    def with_options(options: dict[str, str]) -> Heading:
        return msgspec.structs.replace(HEADING, options={**HEADING.options, **options})

    Journal(path, with_options(before)).add("a", trial(0))
    if is_same:
        assert Journal(path, with_options(now)).recall("a") == trial(0)
    else:
        with pytest.raises(InputError, match="with other --blocks"):
            Journal(path, with_options(now))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_s", [0.1, 0.0]),
        ("step_s", [0.1, -0.1]),
        ("step_s", [0.1, 1e8]),
        ("step_s", [0.1, "nan"]),
        ("samples_per_step", -8.0),
        ("peak_memory_bytes", -1),
        ("energy_j_per_step", 1e19),
        ("index", -1),
        ("epoch_ends", [-1]),
        ("spells", [[3, "evaluation", -1.0]]),
        ("covariates", {"sm_clock_hz": -1e9}),
    ],
)
def test_a_line_with_a_number_that_cannot_be_is_damaged(path: Path, field: str, value: object) -> None:
    """Such numbers have no logarithm, or no square; a resumed tuning ended in an internal error."""
    Journal(path, HEADING).add("a", trial(0))
    heading, line = path.read_text().splitlines()
    content = json.loads(line)
    content["result"][field] = value
    path.write_text(f"{heading}\n{json.dumps(content)}\n")
    again = Journal(path, HEADING)
    assert (again.num_damaged, again.recall("a")) == (1, None)
    assert again.damaged[0].number == 2 and f"$.result.{field}" in again.damaged[0].problem


@pytest.mark.parametrize("step_s", [1e-9, 1e7])
def test_the_shortest_and_the_longest_step_are_read(path: Path, step_s: float) -> None:
    Journal(path, HEADING).add("a", trial(0, step_s=(step_s, step_s)))
    again = Journal(path, HEADING)
    assert (again.num_damaged, again.num_before) == (0, 1)
