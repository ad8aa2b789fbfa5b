"""What a tuning leaves for other tools."""

from __future__ import annotations

import math
import resource
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.report import tuning_builder as builder
from tests.verdict.trials import trial

from flatout.errors import InputError, OutputError, UsageError
from flatout.predict.history import read_history
from flatout.records.prediction import Prediction
from flatout.records.tuning import Screened, TuneRequest, TuneResult
from flatout.tune import files
from flatout.tune.files import learn, learned, open_tuning, outcomes_of, write_results
from flatout.tune.options import TuneOptions
from flatout.tune.runner import Runner, Say


def test_a_job_that_is_started_for_good_has_no_folder_of_a_trial(tmp_path: Path) -> None:
    made = builder.better()
    command = ("torchrun", "--standalone", "train.py", "--out={trial_dir}/run")
    made = msgspec.structs.replace(made, tuning=msgspec.structs.replace(made.tuning, command=command))
    lines = write_results(made, tmp_path, apply=False, command=["flatout", "tune"])
    launch = next(line for line in lines if "exec torchrun" in line or "torchrun --standalone" in line)
    assert "--out=./run" in launch and "{trial_dir}" not in launch
    assert "--out={trial_dir}/run" in (tmp_path / "tuned.toml").read_text()  # as it was tuned


COMMAND = ("python", "train.py")


def finished(folder: Path, made: TuneResult, **asked: object) -> None:
    """A tuning of `COMMAND` in `folder`, at its end."""
    spent: dict[str, object] = {"budget_s": 600.0} | asked
    start(folder, **spent).journal.add("key", trial(0))
    result = msgspec.structs.replace(made, request=TuneRequest(**spent))  # type: ignore[arg-type]
    write_results(result, folder, apply=False, command=["flatout", "tune"])


def start(folder: Path, *, force: bool = False, say: Say = lambda line: None, **options: object) -> Runner:
    """As a process of its own would: its lock is gone with it."""
    asked = TuneOptions(**options)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "lock_folder", lambda folder, kind: None)
        return open_tuning(COMMAND, folder, asked, warmup=None, force=force, say=say)


def test_trials_that_do_not_get_the_users_input_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        missing = "it is a terminal"

    said: list[str] = []
    monkeypatch.setattr(files, "StandardInput", Terminal)
    start(tmp_path / "a", say=said.append)
    assert said[0] == "trials have no standard input: it is a terminal"
    monkeypatch.setattr(Terminal, "missing", None)
    start(tmp_path / "b", say=said.append)
    assert sum("standard input" in line for line in said) == 1


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ({}, {"budget_s": 601.0}),
        ({"max_trials": 20}, {"budget_s": 600.0, "max_trials": 21}),
        ({"max_trials": 20}, {"budget_s": 900.0, "max_trials": 20}),
        ({"max_trials": 20}, {"budget_s": 600.0}),
    ],
)
def test_what_its_budget_ended_goes_on_with_a_larger_one(
    tmp_path: Path, former: dict[str, object], now: dict[str, object]
) -> None:
    finished(tmp_path / "out", builder.out_of_budget(), **former)
    journal = (tmp_path / "out" / "journal.jsonl").read_bytes()
    start(tmp_path / "out", **now)
    assert (tmp_path / "out" / "journal.jsonl").read_bytes() == journal
    assert (tmp_path / "out" / "tuning.json").exists()  # until there are other results


@pytest.mark.parametrize(
    ("former", "now", "got"),
    [
        ({}, {"budget_s": 600.0}, "--budget 600s"),
        ({}, {"budget_s": 300.0}, "--budget 300s"),
        ({}, {"budget_s": 900.0, "max_trials": 50}, "--budget 900s --trials 50"),
        ({"max_trials": 20}, {"budget_s": 300.0, "max_trials": 40}, "--budget 300s --trials 40"),
    ],
)
def test_what_its_budget_ended_does_not_go_on_with_no_more(
    tmp_path: Path, former: dict[str, object], now: dict[str, object], got: str
) -> None:
    finished(tmp_path / "out", builder.out_of_budget(), **former)
    with pytest.raises(
        UsageError, match=r"ended because .* increase `--budget` or `--trials`, and decrease neither; got "
    ) as error:
        start(tmp_path / "out", **now)
    assert str(error.value).endswith(got)
    start(tmp_path / "out", force=True, **now)
    assert not (tmp_path / "out" / "tuning.json").exists()


def test_what_ended_by_itself_does_not_go_on(tmp_path: Path) -> None:
    finished(tmp_path / "out", builder.nothing())
    with pytest.raises(OutputError, match="already has a finished tuning"):
        start(tmp_path / "out", budget_s=9000.0)


def test_what_its_budget_ended_does_not_go_on_with_other_options(tmp_path: Path) -> None:
    finished(tmp_path / "out", builder.out_of_budget())
    with pytest.raises(InputError, match="is the journal of another tuning"):
        start(tmp_path / "out", budget_s=900.0, num_steps=7)


def test_results_are_not_taken_over_though_no_trial_succeeded(tmp_path: Path) -> None:
    """As of a budget that was too small: the report is there."""
    failed = msgspec.structs.replace(trial(0), outcome="timed_out", step_s=())
    start(tmp_path / "out", budget_s=600.0).journal.add("key", failed)
    asked = TuneRequest(budget_s=600.0)
    made = msgspec.structs.replace(builder.out_of_budget(), request=asked)
    write_results(made, tmp_path / "out", apply=False, command=["flatout", "tune"])
    with pytest.raises(InputError, match="is the journal of another tuning"):
        start(tmp_path / "out", budget_s=900.0, num_steps=7)
    start(tmp_path / "out", budget_s=900.0)


def test_a_winner_that_did_not_hold_leaves_no_configuration_behind(tmp_path: Path) -> None:
    write_results(builder.better(), tmp_path, apply=False, command=["flatout", "tune"])
    assert (tmp_path / "tuned.toml").exists()
    write_results(builder.nothing(), tmp_path, apply=False, command=["flatout", "tune"])
    assert not (tmp_path / "tuned.toml").exists()


def screened(change: str, predicted: float, measured: float, sd: float = 0.02) -> Screened:
    model = (predicted, predicted * 0.9, 2.0)
    prediction = Prediction(
        change=change, family="nccl", speedup=predicted, low=predicted * 0.9, high=2.0, how="", model=model
    )
    return Screened(prediction=prediction, speedup=measured, sd=sd)


def test_losers_of_the_screening_are_learned_from_with_their_noise(tmp_path: Path) -> None:
    """Predicted to be half as fast again, and a fifth slower."""
    made = msgspec.structs.replace(builder.nothing(), screened=(screened("nccl-channels=8", 1.51, 0.80),))
    learn(made, tmp_path / "history")
    (found,) = [one for one in read_history(tmp_path / "history").records if one.change == "nccl-channels=8"]
    assert (found.predicted, found.measured, found.sd) == (1.51, 0.80, 0.02)
    after = learned(tmp_path / "history")
    assert after is not None
    assert after.of("nccl", "nccl-sockets=4x4", (1.5, 1.3, 1.8)).speedup < 1.49


def test_what_has_pairs_is_learned_from_them_alone_and_what_is_unsafe_never(tmp_path: Path) -> None:
    made = builder.better()
    pairs = {one.change for one in outcomes_of(made)}
    assert pairs
    unsafe = msgspec.structs.replace(made.tried[0], name="bad", changes=("bad",), outcome="unsafe", verdict=None)
    more = tuple(screened(name, 1.5, 9.0) for name in (*pairs, "bad", "other"))
    made = msgspec.structs.replace(made, tried=(*made.tried, unsafe), screened=more)
    found = outcomes_of(made)
    assert sorted(one.change for one in found) == sorted([*pairs, "other"])
    assert {one.change for one in found if one.measured == 9.0} == {"other"}


def test_what_is_learned_is_the_plain_mean_of_pairs_and_not_what_is_quoted_of_the_lucky_ones() -> None:
    (one,) = outcomes_of(builder.corrected())
    assert one.measured == 1.049


def test_what_was_tuned_for_energy_teaches_nothing_of_time() -> None:
    made = msgspec.structs.replace(builder.better(), objective="j_per_sample")
    assert outcomes_of(made) == []


def test_a_tuning_that_goes_on_is_learned_from_once_and_not_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "history"
    for measured in (0.8, 0.9):
        learn(msgspec.structs.replace(builder.nothing(), screened=(screened("a", 1.5, measured),)), file)
    date = builder.nothing().tuning.date
    told = learned(file)
    assert told is not None and [score.change for score in told.scores].count("a") == 1
    assert next(score.value for score in told.scores if score.change == "a") * math.log(1.5 / 1.35) == pytest.approx(
        math.log(0.9 / 1.5)
    )
    assert learned(file, but=date) is None


def test_pairs_count_as_much_as_their_noise_and_their_number_allow() -> None:
    """With the same noise per trial, four pairs are half as uncertain as one; two pairs count before any analysis
    too.
    """
    made = builder.better()
    assert made.floor is not None
    of_one = made.floor.pair_sd(made.num_steps)
    by_number = {
        one.prediction.change: one.verdict.num_pairs
        for one in made.tried
        if one.prediction is not None and one.verdict is not None and one.outcome != "unsafe"
    }
    found = outcomes_of(made)
    assert len(found) == len(by_number) == 2
    for one in found:
        assert one.sd == pytest.approx(of_one / by_number[one.change] ** 0.5)
    early = builder.verdict(
        "undecided", 1.6, num_pairs=2, reason="2 pairs count, and the first interim analysis is at 4"
    )
    assert early.interval is None
    tried = msgspec.structs.replace(made.tried[0], outcome="not confirmed", verdict=early)
    (told,) = outcomes_of(
        msgspec.structs.replace(made, tried=(tried,), screened=(screened("nccl-channels", 2.0, 9.0),))
    )[:1]
    assert (told.measured, told.sd) == (1.6, pytest.approx(of_one / 2**0.5))


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file may become larger: a write beyond fails, as where the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_nothing_is_written_by_halves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start(out).journal.add("key", trial(0))
    with largest_file(4096), pytest.raises(OutputError, match=r"report\.html"):
        write_results(builder.better(), out, apply=True, command=["flatout", "tune"])
    assert sorted(file.name for file in out.iterdir()) == ["journal.jsonl"]
    assert start(out).journal.num_before == 1
    write_results(builder.better(), out, apply=False, command=["flatout", "tune"])
    assert {"report.html", "tuned.toml", "tuning.json"} <= {file.name for file in out.iterdir()}


def test_files_that_were_filled_in_since_are_left_as_they_are(tmp_path: Path) -> None:
    write_results(builder.better(), tmp_path, apply=True, command=["flatout", "tune"])
    job = tmp_path / "files" / "jobset.yaml"
    mine = job.read_text().replace("image:", "image: my.registry/train #")
    assert mine != job.read_text()
    job.write_text(mine)
    (tmp_path / "files" / "tuned.env").unlink()
    lines = write_results(builder.better(), tmp_path, apply=True, command=["flatout", "tune"])
    assert job.read_text() == mine
    assert f"{job} exists and is not overwritten; it would become:" in lines
    assert f"wrote {tmp_path / 'files' / 'tuned.env'}" in lines
    assert [line for line in lines if line.startswith("-") and "my.registry" in line]


@pytest.mark.parametrize("apply", [False, True])
def test_no_file_and_no_line_has_a_secret_of_the_command(tmp_path: Path, apply: bool) -> None:
    made = builder.better()
    command = ("python", "train.py", "--api-key", "hunter2", "--out={trial_dir}")
    made = msgspec.structs.replace(made, tuning=msgspec.structs.replace(made.tuning, command=command))
    lines = write_results(made, tmp_path, apply=apply, command=["flatout", "tune", "--", *command])
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) == (12 if apply else 3)
    assert not any("hunter2" in text for text in (*lines, *(file.read_text() for file in written)))
    said = "values that look like secrets are *** in the written command: before you run that, replace each of them"
    assert sum(line.startswith(said) for line in lines) == 1
    assert tomllib.loads((tmp_path / "tuned.toml").read_text())["command"][2:4] == ["--api-key", "***"]
