"""An interrupted tuning of a server is resumed by the same command: its trials are used, and the rest is run."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
from tests.serving.scenarios import SCENARIOS
from tests.serving.simulated import SLO, TABLE, tuned

from flatout.errors import OutputError
from flatout.records.serving import ServerTrial
from flatout.serving.command import ServeCommand
from flatout.serving.journal import NAME, Begun, ServingJournal, identity_of
from flatout.serving.loop import Found, ServingOptions
from flatout.tune.result_folder import SearchLimits

SCENARIO = next(scenario for scenario in SCENARIOS if scenario.cause == "under-batched")
SERVER = f"{sys.executable} {Path(__file__).with_name('fake_server.py')}"


def tuning(max_trials: int, recorded: tuple[ServerTrial, ...] = (), kept: list[ServerTrial] | None = None) -> Found:
    return tuned(
        SCENARIO.words,
        seed=3,
        rates=SCENARIO.rates,
        slo=SCENARIO.slo,
        options=ServingOptions(budget_s=1e9, max_trials=max_trials),
        recorded=recorded,
        keep=(kept if kept is not None else []).append,
        **SCENARIO.load,
    )


@cache
def whole() -> Found:
    return tuning(30)


@pytest.mark.parametrize("at", [2, 6])
def test_finished_trials_are_used_and_the_rest_decides_the_same(at: int) -> None:
    first = whole().trials[:at]
    kept: list[ServerTrial] = []
    result = tuning(30, first, kept)
    assert result.trials[:at] == first
    assert tuple(kept) == result.trials[at:]
    assert result.adopted == whole().adopted
    assert result.verdict is not None
    assert result.verdict.verdict == "better"
    present = {"baseline"} | {change.name for change in result.adopted}
    assert kept[0].arm in present, "the first new trial is one of the present server"


def test_trials_that_no_longer_follow_are_left_out() -> None:
    stranger = msgspec.structs.replace(whole().trials[0], arm="another")
    result = tuning(6, (*whole().trials[:2], stranger, *whole().trials[2:]))
    assert result.trials[:2] == whole().trials[:2]
    assert "another" not in {trial.arm for trial in result.trials}


def begun(identity: str) -> Begun:
    return Begun(
        identity=identity,
        tool_version="1",
        rates_per_s=SCENARIO.rates,
        words_per_token=0.5,
        notes=("a note",),
        first=whole().trials[0],
    )


def test_the_journal_gives_back_what_it_was_given_but_not_to_another_tuning(tmp_path: Path) -> None:
    journal = ServingJournal(tmp_path, identity_of("a", SLO))
    assert journal.read() is None
    journal.begin(begun(journal.identity))
    for trial in whole().trials[1:4]:
        journal.keep(trial)
    recorded = journal.read()
    assert recorded is not None
    assert (recorded.begun, recorded.trials) == (begun(journal.identity), whole().trials[1:4])
    path = tmp_path / NAME
    assert path.stat().st_mode & 0o77 == 0
    path.write_bytes(path.read_bytes()[:-20])
    truncated = journal.read()
    assert truncated is not None
    assert truncated.trials == whole().trials[1:3]
    assert ServingJournal(tmp_path, identity_of("b", SLO)).read() is None
    path.write_text("[]\n")
    assert journal.read() is None


def test_the_command_resumes_with_the_rates_and_the_first_start_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials that it may make are there, so no server is started."""
    monkeypatch.setattr("flatout.serving.command.identity_of", lambda *parts: "same")
    load = tmp_path / "load.toml"
    load.write_text("rates = [2]\nrequests = 8\n")
    folder = tmp_path / "out"
    (folder / "logs").mkdir(parents=True)
    (folder / "serving.json").write_text("{}")
    journal = ServingJournal(folder, "same")
    journal.begin(begun("same"))
    for trial in whole().trials[1:5]:
        journal.keep(trial)
    command = ServeCommand(
        server=SERVER,
        load=load,
        slo=SCENARIO.slo,
        limits=SearchLimits(folder=folder, budget_s=1800.0, max_trials=5),
        engine=str(TABLE),
    )
    said: list[str] = []
    result = command.tune(said.append)
    assert any(line.startswith("resuming: 5 trials of") for line in said)
    assert (result.ended_by, result.num_trials) == ("trials", 5)
    assert result.rates_per_s == SCENARIO.rates
    assert "a note" in result.notes
    assert any("resumes it" in line for line in command.write(result, ["flatout"]))
    monkeypatch.setattr("flatout.serving.command.identity_of", lambda *parts: "other")
    with pytest.raises(OutputError, match="already has a result"):
        command.tune(said.append)
