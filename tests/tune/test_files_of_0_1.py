"""A tuning that Flatout 0.1.0 wrote, ended by its trials within a confirmation: its journal and result are still read.

One CPU, one rank, `--knob 'mode/exact={bad,fast}:--mode={}'`, of which `bad` fails.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.combine import combine
from flatout.errors import FlatoutError, UsageError
from flatout.records.change import ChangeSet, JobFacts
from flatout.trial.journal import Heading, Journal
from flatout.tune.files import former_date, open_tuning
from flatout.tune.options import TuneOptions
from flatout.tune.runner import Runner
from flatout.tune.trial_keys import trial_key

GOLDEN = Path(__file__).with_name("golden") / "of_0_1"
COMMAND = ("python", "train.py")
KNOB = "mode/exact={bad,fast}:--mode={}"
NOTHING = ChangeSet()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("flatout.tune.files.__version__", "0.1.0")  # only the same version goes on
    return Path(shutil.copytree(GOLDEN, tmp_path / "tuned"))


def opened(folder: Path, *, max_trials: int = 28) -> Runner:
    options = TuneOptions(budget_s=240.0, max_trials=max_trials, num_steps=12, knobs=(KNOB,))
    return open_tuning(COMMAND, folder, options, warmup=None, force=False, say=lambda line: None)


def set_to(value: str) -> ChangeSet:
    changes = knob_changes(parse_knob(KNOB), COMMAND, JobFacts(), "exact")
    return combine([next(change for change in changes if change.value == value)], JobFacts())


def test_it_goes_on_with_more_trials_and_makes_none_again(folder: Path) -> None:
    runner = opened(folder)
    pair = "pair of mode=fast and baseline"
    places = [(NOTHING, "round 0")] * 3 + [(NOTHING, "round 1"), (NOTHING, "round 2"), (set_to("fast"), "round 2")]
    places += [(NOTHING, pair), (set_to("fast"), pair), (set_to("fast"), pair), (NOTHING, pair), (NOTHING, pair)]
    results = [runner.trial(changes, 12, place) for changes, place in places]
    assert runner.num_resumed == len(places)
    assert all(result.is_complete and len(result.step_s) == 12 for result in results)
    assert results[0].step_s[:2] == (0.009943349, 0.009352218)
    assert [result.session for result in results] == [0] * len(places)


def test_a_trial_that_failed_is_made_again_and_its_line_is_no_damage(folder: Path) -> None:
    journal = Journal(folder / "journal.jsonl", heading())
    assert (journal.num_damaged, journal.num_before, journal.session) == (0, 13, 1)
    assert journal.recall(trial_key(set_to("bad"), 12), "round 1") is None
    profile = journal.recall_profile(trial_key(NOTHING, 0))
    assert profile is not None and profile.folder == "profile-003"


def heading() -> Heading:
    line = json.loads((GOLDEN / "journal.jsonl").read_text().splitlines()[0])
    return Heading(tool_version=line["tool_version"], command=tuple(line["command"]), options=line["options"])


def test_its_result_says_what_ended_it(folder: Path) -> None:
    with pytest.raises(UsageError, match="ended because all 14 trials were made, while a change was being confirmed"):
        opened(folder, max_trials=14)
    assert former_date(folder) == json.loads((GOLDEN / "tuning.json").read_text())["date"]


def test_a_finished_one_is_not_written_over(folder: Path) -> None:
    result = json.loads((folder / "tuning.json").read_text())
    (folder / "tuning.json").write_text(json.dumps(result | {"is_cut_short": False}))
    with pytest.raises(FlatoutError, match="finished tuning"):
        opened(folder)
