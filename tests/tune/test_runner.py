"""The runner: what a run is asked for, what is made of how it ended, and what is taken from the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.change.jobs import diagnosis, facts
from tests.trial.recordings import START_UNIX_S, measured, rank, recording

import flatout.tune.profiled as profiled
from flatout.diagnosis_pipeline import Diagnosed
from flatout.errors import FlatoutError, InputError, TracedTooLateError
from flatout.inside.protocol import Variable
from flatout.launch import ExitStatus
from flatout.profile.record import RecordOptions, RecordResult
from flatout.records.change import Change, ChangeSet, Knob, Patch
from flatout.records.recording import HostRecording, Recording
from flatout.records.start_costs import StartCosts
from flatout.records.stop_rule import fixed_steps
from flatout.records.trial import StartState, TrialResult
from flatout.trial.journal import Heading, Journal
from flatout.tune import recorded_runs, time_limits
from flatout.tune.runner import EPOCH_PLACE, Runner
from flatout.tune.trial_keys import trial_key

NOTHING = ChangeSet()
HEADING = Heading(tool_version="1", command=("python", "train.py"), options={})
COMMAND = ("python", "train.py", "--out={trial_dir}/a", "--log", "{trial_dir}/b")


def change(name: str, **values: Any) -> ChangeSet:
    knob = Knob(name=name, family="ddp", summary="", safety="exact", doc="", source="")
    return ChangeSet(changes=(Change(name=name, knob=knob),), **values)


class Job:
    """In place of a job: keeps what it was started with, and ends as it is told."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.options: list[RecordOptions] = []
        self.environments: list[Mapping[str, str]] = []
        self.limits: list[float] = []
        self.code: int | None = 0
        self.is_timed_out = False
        self.found: Recording | None = None
        self.prints = ""
        self.during: Callable[[Path], None] = lambda folder: None

    def record(self, command: Sequence[str], path: Path, options: RecordOptions, **values: Any) -> RecordResult:
        path.mkdir()
        self.commands.append(tuple(command))
        self.options.append(options)
        self.environments.append(values["environment"])
        self.limits.append(values["run_command"].keywords["limit_s"])
        output: Path = values["run_command"].keywords["output"]
        output.write_text(self.prints)
        (path.parent / "saved").mkdir()
        self.during(path)
        ended = ExitStatus(
            code=self.code,
            signal=None,
            start_unix_s=START_UNIX_S,
            end_unix_s=START_UNIX_S + 12,
            is_timed_out=self.is_timed_out,
        )
        return RecordResult(path=path, ended=ended, is_first=True)

    def read(self, path: Path) -> Recording:
        if self.found is None:
            raise InputError(f"{path} has no recording")
        return self.found


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    made = Job()
    made.found = recording(tmp_path, rank(0), rank(1), numbers=measured(step_s=0.1))
    monkeypatch.setattr(recorded_runs, "record", made.record)
    monkeypatch.setattr(profiled, "read_recording", made.read)
    return made


def runner(tmp_path: Path, *, budget_s: float = 3600.0, said: list[str] | None = None) -> Runner:
    return Runner(
        COMMAND,
        tmp_path,
        Journal(tmp_path / "journal.jsonl", HEADING),
        shown_command=COMMAND,
        budget_s=budget_s,
        say=(said if said is not None else []).append,
        environment={"HOME": "/home/user"},
        warmup=3,
    )


def test_a_trial_has_a_folder_of_its_own_and_what_the_script_wrote_there_is_deleted(job: Job, tmp_path: Path) -> None:
    def write(recorded: Path) -> None:
        (recorded.parent / "files" / "big").write_text("x")

    job.during = write
    made = runner(tmp_path)
    made.trial(NOTHING, 20)
    made.trial(NOTHING, 20)
    files = [tmp_path / "runs" / f"trial-{index:03d}" / "files" for index in range(2)]
    assert job.commands == [("python", "train.py", f"--out={folder}/a", "--log", f"{folder}/b") for folder in files]
    for folder in files:
        assert sorted(file.name for file in folder.parent.iterdir()) == ["output.log", "recording"]


def test_what_a_script_wrote_into_its_trials_folder_is_not_told_as_left(job: Job, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()

    def during(folder: Path) -> None:
        (folder.parent / "saved" / ".began").touch()
        written = [folder.parent / "files" / "log.csv", tmp_path / "runs" / "log.csv"]
        for file in written:
            file.write_text("1\n")
        lines = [json.dumps({"path": str(file), "kind": "new", "existed": False}) for file in written]
        (folder / "diverted-host-1.jsonl").write_text("\n".join(lines) + "\n")

    job.during = during
    made = runner(tmp_path)
    made.trial(NOTHING, 3)
    assert made.outputs.left == {str(tmp_path / "runs" / "log.csv")}  # in the temporary folder of the machine


def test_a_trial_is_light_and_is_told_when_to_stop(job: Job, tmp_path: Path) -> None:
    made = runner(tmp_path)
    made.trial(NOTHING, 25)
    (options,) = job.options
    assert options.is_light and options.warmup == 3
    rule = json.loads(options.variables["FLATOUT_STOP_RULE"])
    assert (rule["min_steps"], rule["max_steps"]) == (25, 25)
    assert options.variables["FLATOUT_DIVERT"] == str(tmp_path / "runs" / "trial-000" / "saved")
    assert float(options.variables["FLATOUT_STOP_AFTER_S"]) < job.limits[0]  # it ends itself before it is ended
    assert "FLATOUT_DATA_CHECK" not in options.variables
    assert options.variables["FLATOUT_GRADIENTS"] == "1"
    assert options.variables[Variable.SEED] == recorded_runs._SEED
    assert Variable.OTHER_SAMPLES not in options.variables
    assert job.environments == [{"HOME": "/home/user", Variable.TUNING: made.mark}]


def test_a_trial_with_other_samples_has_another_seed_and_no_trial_stands_in_for_it(job: Job, tmp_path: Path) -> None:
    first = runner(tmp_path)
    first.trial(NOTHING, 25)
    other = first.trial(NOTHING, 25, other_samples=True)
    seeds = job.options[1].variables
    assert seeds[Variable.SEED] == recorded_runs._SEED
    assert seeds[Variable.OTHER_SAMPLES] not in ("", recorded_runs._SEED)
    assert other.has_other_samples
    resumed = runner(tmp_path)
    assert [resumed.trial(NOTHING, 25, other_samples=wanted).has_other_samples for wanted in (True, False)] == [
        True,
        False,
    ]
    assert len(job.options) == 2


def test_a_trial_with_other_rounding_is_another_than_one_without(job: Job, tmp_path: Path) -> None:
    first = runner(tmp_path)
    usual, other = first.trial(NOTHING, 25), first.trial(NOTHING, 25, other_rounding=True)
    assert (usual.has_other_rounding, other.has_other_rounding) == (False, True)
    assert [options.variables.get(Variable.OTHER_ROUNDING) for options in job.options] == [None, "1"]
    resumed = runner(tmp_path)
    assert resumed.trial(NOTHING, 25, other_rounding=True).has_other_rounding and len(job.options) == 2


def test_weights_that_follow_the_samples_do_not_hide_that_a_change_begins_with_others(tmp_path: Path) -> None:
    """A script that looks at a batch before it makes its model."""
    made = runner(tmp_path)

    def begun(index: int, weights: str, *, has_other_samples: bool = False) -> TrialResult:
        start = (StartState(num_steps=0, has_state=False, weights=weights),)
        return TrialResult(
            index=index,
            arm="baseline",
            outcome="completed",
            step_s=(1.0,),
            start=start,
            has_other_samples=has_other_samples,
        )

    for trial in (begun(0, "a"), begun(1, "b", has_other_samples=True), begun(2, "a")):
        assert made._with_comparable_start(trial, NOTHING).outcome == "completed"
    assert made._with_comparable_start(begun(3, "b"), change("faster")).cause == "other_start"


def test_a_trial_is_asked_to_stop_so_early_that_it_has_ended_with_the_budget(job: Job, tmp_path: Path) -> None:
    made = runner(tmp_path, budget_s=45.0)
    made.trial(NOTHING, 20)
    before_s = float(job.options[-1].variables[Variable.STOP_AFTER_S])
    costs = StartCosts(**dict.fromkeys(StartCosts.__struct_fields__, 0.0) | {"end_s": 8.0})
    made._complete = [msgspec.structs.replace(made._complete[0], start_costs=costs)]
    made.trial(NOTHING, 20)
    assert before_s - float(job.options[-1].variables[Variable.STOP_AFTER_S]) == pytest.approx(8, abs=1)


def test_what_a_change_sets_reaches_the_run(job: Job, tmp_path: Path) -> None:
    patch = Patch(name="dataloader", parameters={"num_workers": 4})
    runner(tmp_path).trial(change("a", environment={"NCCL_ALGO": "Ring"}, patches=(patch,)), 20)
    variables = job.options[0].variables
    assert variables["NCCL_ALGO"] == "Ring"
    assert json.loads(variables["FLATOUT_PATCHES"]) == [{"name": "dataloader", "parameters": {"num_workers": 4}}]


def test_a_patch_of_which_no_process_says_that_it_took_effect_was_not_applied(job: Job, tmp_path: Path) -> None:
    patched = change("a", patches=(Patch(name="dataloader", parameters={}),))
    result = runner(tmp_path).trial(patched, 20)
    assert (result.outcome, result.cause) == ("failed", "not_applied")
    assert result.problem == "dataloader: no training process reported it"

    def report(recorded: Path) -> None:
        (recorded / "patches-1.jsonl").write_text('{"patch": "dataloader", "pid": 1, "applied": true}\n')

    job.during = report
    (tmp_path / "other").mkdir()
    assert runner(tmp_path / "other").trial(patched, 20).is_complete


@pytest.mark.parametrize(("of_ranks", "expected"), [((2, 2), 2), ((2, 0), None), ((), None), (("two", "two"), None)])
def test_the_workers_of_a_trials_loaders_are_in_its_result(
    job: Job, tmp_path: Path, of_ranks: tuple[object, ...], expected: int | None
) -> None:
    def write(recorded: Path) -> None:
        for number, workers in enumerate(of_ranks):
            content = {"rank": number, "facts": {"loader_workers": workers}}
            (recorded / f"facts-rank{number}.json").write_text(json.dumps(content))

    job.during = write
    assert runner(tmp_path).trial(NOTHING, 20).loader_workers == expected


@pytest.mark.parametrize("num_written", [2, 1, 0])
def test_the_gradients_of_all_ranks_are_in_a_trials_result(job: Job, tmp_path: Path, num_written: int) -> None:
    def write(_: Path) -> None:
        for number in range(num_written):
            steps = [[3.0, 4.0], None, ["nan", 1.0]]
            unclipped = [None, None, [30.0, 40.0]]
            optimizer = {"num_parameters": 2, "sharded": [], "steps": steps, "unclipped": unclipped}
            content = {"schema": "flatout/gradients", "version": 1, "rank": number, "optimizers": [optimizer]}
            (tmp_path / f"gradients-rank{number}.json").write_text(json.dumps(content))

    job.during = write
    found = runner(tmp_path).trial(NOTHING, 20).gradients
    norms = ["(5.0, nan, inf)", "(nan, nan, 50.0)"] if num_written == 2 else []
    assert [repr(of) for one in found for of in (one.norms, one.unclipped)] == norms


def begins(folder: Path, num_steps: int, weights: str) -> None:
    """Let both ranks' next trial begin in this state."""
    start = {"num_steps": num_steps, "has_state": num_steps > 0, "weights": weights}
    optimizer = {"num_parameters": 1, "sharded": [], "steps": [[1.0]], "unclipped": [None], "start": start}
    for number in range(2):
        (folder / f"gradients-rank{number}.json").write_text(json.dumps({"rank": number, "optimizers": [optimizer]}))


def test_a_trial_that_resumes_from_another_ones_checkpoint_is_void(job: Job, tmp_path: Path) -> None:
    trials = runner(tmp_path)
    begins(tmp_path, 0, "a")
    assert trials.trial(NOTHING, 20).is_complete
    assert trials.trial(change("a"), 20).is_complete
    begins(tmp_path, 40, "b")
    resumed = trials.trial(change("b"), 20)
    assert (resumed.outcome, resumed.cause) == ("failed", "other_start")
    assert "began at optimizer step 40, and the first trial at step 0" in resumed.problem
    again = runner(tmp_path)  # after an interruption, from the journal
    assert again.trial(NOTHING, 20).is_complete
    assert again.trial(change("b"), 20).cause == "other_start"


def test_other_weights_are_void_once_the_job_is_known_to_begin_with_the_same_ones(job: Job, tmp_path: Path) -> None:
    trials = runner(tmp_path)
    begins(tmp_path, 0, "a")
    trials.trial(NOTHING, 20)
    trials.trial(NOTHING, 20)
    begins(tmp_path, 0, "b")
    assert trials.trial(change("b"), 20).cause == "other_start"


def test_a_trial_over_an_epoch_has_more_time_and_does_not_say_what_is_usual(job: Job, tmp_path: Path) -> None:
    trials = runner(tmp_path)
    trials.trial(NOTHING, 20)
    usual_s = trials.usual_s
    trials.usual_s = 20.0
    trials.trial(NOTHING, 80, f"{EPOCH_PLACE} of something")
    assert job.limits[-1] == pytest.approx(5 * 20.0 * 80 / 20 + time_limits._STOP_GRACE_S, abs=1)
    assert trials.usual_s == 20.0 != usual_s


def test_how_a_trial_ended_is_in_its_result_and_in_the_journal(job: Job, tmp_path: Path) -> None:
    said: list[str] = []
    made = runner(tmp_path, said=said)
    assert made.trial(NOTHING, 20).step_s == pytest.approx((0.1,) * 4)
    job.code, job.prints = 1, "ValueError: bad\n"
    failed = made.trial(NOTHING, 20)
    assert (failed.outcome, failed.problem, failed.index) == ("failed", "exit code 1: ValueError: bad", 1)
    job.found = None
    assert made.trial(NOTHING, 20).outcome == "failed"
    job.code, job.is_timed_out = None, True
    assert made.trial(NOTHING, 20).outcome == "timed_out"
    assert made.num_trials == len(said) == 4
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 5


def test_a_trial_may_take_five_times_as_long_as_usual_and_no_longer_than_the_budget(job: Job, tmp_path: Path) -> None:
    made = runner(tmp_path)
    made.trial(NOTHING, 20)
    made.usual_s = 100.0
    made.trial(NOTHING, 20)
    assert job.limits == pytest.approx([1800 + 60, 500 + 60])
    (tmp_path / "short").mkdir()
    short = runner(tmp_path / "short", budget_s=200.0)
    short.usual_s = 100.0
    short.trial(NOTHING, 20)
    assert job.limits[-1] == pytest.approx(200 + 10, abs=5)  # soon after the budget
    (tmp_path / "none").mkdir()
    runner(tmp_path / "none", budget_s=1.0).trial(NOTHING, 20)
    assert job.limits[-1] == 30 + 10


def test_only_the_job_as_it_came_says_what_a_trial_usually_takes(job: Job, tmp_path: Path) -> None:
    made = runner(tmp_path)
    made.trial(change("a"), 20)
    assert made.usual_s is not None  # better than nothing
    made.usual_s = 77.0
    made.trial(change("a"), 20)
    assert made.usual_s == 77.0
    made.trial(NOTHING, 20)
    assert made.usual_s != 77.0


def test_finished_trials_are_taken_from_the_journal_and_their_time_counts(job: Job, tmp_path: Path) -> None:
    first = runner(tmp_path)
    for changes, steps in ((NOTHING, 20), (NOTHING, 20), (change("a"), 20)):
        first.trial(changes, steps)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    took = [json.loads(line)["result"]["took_s"] for line in lines[1:]]
    assert all(seconds > 0 for seconds in took)
    for line, seconds in zip(lines[1:], (10.0, 20.0, 40.0), strict=True):
        entry = json.loads(line)
        entry["result"]["took_s"] = seconds
        lines[lines.index(line)] = json.dumps(entry)
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n")

    num_runs = len(job.commands)
    again = runner(tmp_path)
    results = [again.trial(NOTHING, 20), again.trial(change("a"), 20), again.trial(NOTHING, 20)]
    assert len(job.commands) == num_runs
    assert [one.index for one in results] == [0, 1, 2] and [one.session for one in results] == [0, 0, 0]
    assert again.num_resumed == 3 and again.spent_s() == pytest.approx(70.0, abs=5)
    new = again.trial(NOTHING, 20)
    assert len(job.commands) == num_runs + 1 and new.session == 1
    assert again.num_resumed == 3 and again.num_trials == 4


def test_a_trial_of_another_length_or_other_settings_is_another_trial() -> None:
    assert trial_key(NOTHING, 20) != trial_key(NOTHING, 30)
    assert trial_key(change("a", environment={"X": "1"}), 20) != trial_key(change("a", environment={"X": "2"}), 20)


@pytest.fixture
def traced(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    """The job's recording has traces, and a diagnosis."""
    one = msgspec.structs.replace(rank(0), traced_steps=(3, 4))
    job.found = recording(tmp_path, one, numbers=measured(step_s=0.1))
    done = Diagnosed(diagnosis=diagnosis({}, step_s=0.1), job=None, sources={})  # type: ignore[arg-type]
    monkeypatch.setattr(profiled, "diagnose_paths", lambda *_, **__: done)
    monkeypatch.setattr(profiled, "read_facts", lambda *_: facts())
    monkeypatch.setattr(profiled, "with_collectives", lambda known, _: known)
    monkeypatch.setattr(profiled, "with_transport", lambda known, _: known)
    return job


def test_a_profile_is_read_again_after_an_interruption_where_it_is_still_there(traced: Job, tmp_path: Path) -> None:
    runner(tmp_path).profile(NOTHING)
    assert len(traced.commands) == 1 and not traced.options[0].is_light
    again = runner(tmp_path)
    assert again.profile(NOTHING).facts == facts()
    assert len(traced.commands) == 1
    again.profile(change("a"))
    assert len(traced.commands) == 2  # of other changes there is none
    (tmp_path / "runs" / "profile-000" / "recording").rename(tmp_path / "gone")
    runner(tmp_path).profile(NOTHING)
    assert len(traced.commands) == 3


RULE = fixed_steps(5)


@pytest.fixture
def undisturbed(traced: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    """Six steps before the first that the recorder slows down, and no loader."""
    durations = (2.0, 0.5, 0.1, 0.099, 0.101, 0.1, 0.098, 0.102, 0.1, 0.9, 0.8)
    kind = ("first", *([""] * 8), "flops", "traced")
    made = rank(0, durations, settled=3, kind=kind, losses=[1.0] * len(durations))
    steps = msgspec.structs.replace(made.steps, num_loader_ends=np.zeros(len(durations)))
    made = msgspec.structs.replace(made, steps=steps, world_size=1, disturbed_from=9, traced_steps=(10,))
    monkeypatch.setattr(profiled, "read_facts", lambda *_: facts(loader_workers=None, loader_watch_s=None))
    run = HostRecording(
        tool_version="1", command=("python", "train.py"), run_id="1", hostname="host", is_light=False,
        start_unix_s=START_UNIX_S, end_unix_s=START_UNIX_S + 20, exit_code=0,
    )  # fmt: skip
    traced.found = msgspec.structs.replace(recording(tmp_path, made, numbers=measured(step_s=0.1)), runs=(run,))
    return traced


def test_a_profile_with_a_rule_counts_as_the_next_trial(undisturbed: Job, tmp_path: Path) -> None:
    with_rule = runner(tmp_path)
    taken = with_rule.profile(NOTHING, counted=profiled.CountedProfile(rule=RULE)).trial
    assert taken is not None and (taken.index, taken.arm, taken.session) == (0, "baseline", 0)
    assert with_rule.num_trials == 1
    assert json.loads(undisturbed.options[0].variables[Variable.STOP_RULE])["min_steps"] == 5
    assert with_rule.profile(change("a")).trial is None  # without a rule, it is too short to compare
    assert with_rule.num_trials == 1


def test_a_profile_that_is_read_again_counts_as_the_trial_that_it_was(undisturbed: Job, tmp_path: Path) -> None:
    first = runner(tmp_path).profile(NOTHING, counted=profiled.CountedProfile(rule=RULE)).trial
    again = runner(tmp_path)
    assert again.profile(NOTHING, counted=profiled.CountedProfile(rule=RULE)).trial == first
    assert (again.num_trials, len(undisturbed.commands)) == (1, 1)


def test_a_profile_with_other_samples_is_another_than_one_without(undisturbed: Job, tmp_path: Path) -> None:
    counted = profiled.CountedProfile(rule=RULE, has_other_samples=True)
    taken = runner(tmp_path).profile(NOTHING, counted=counted).trial
    assert taken is not None and taken.has_other_samples
    assert Variable.OTHER_SAMPLES in undisturbed.options[0].variables
    again = runner(tmp_path).profile(NOTHING, counted=profiled.CountedProfile(rule=RULE)).trial
    assert again is not None and not again.has_other_samples
    assert Variable.OTHER_SAMPLES not in undisturbed.options[1].variables


@pytest.mark.parametrize(("before_s", "after_s"), [(60.0, 20.0), (12.0, 12.0)])
def test_a_profile_that_counts_shows_how_long_a_trial_takes_after_the_first_start(
    undisturbed: Job, tmp_path: Path, before_s: float, after_s: float
) -> None:
    """It took 20 s, with its trace. The first start of a job is often its slowest."""
    counting = runner(tmp_path)
    counting.usual_s = before_s
    counting.profile(NOTHING, counted=profiled.CountedProfile(rule=RULE))
    assert counting.usual_s == after_s


@pytest.mark.parametrize("is_coarse", [True, False])
def test_timing_the_stages_of_batches_is_allowed_in_a_coarse_trial(
    undisturbed: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_coarse: bool
) -> None:
    monkeypatch.setattr(profiled.Profiled, "is_slowed_by_stages", property(lambda profile: True))
    counted = profiled.CountedProfile(rule=RULE, is_coarse=is_coarse)
    assert (runner(tmp_path).profile(NOTHING, counted=counted).trial is not None) == is_coarse


def test_a_profile_of_an_older_journal_is_no_trial(undisturbed: Job, tmp_path: Path) -> None:
    """Nothing says in which session it ran, and trials of two sessions are not compared."""
    runner(tmp_path).profile(NOTHING, counted=profiled.CountedProfile(rule=RULE))
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace(',"session":0', ""))
    again = runner(tmp_path)
    assert again.profile(NOTHING, counted=profiled.CountedProfile(rule=RULE)).trial is None
    assert again.num_trials == 0


def test_a_profile_that_did_not_succeed_is_one_line_and_made_again(traced: Job, tmp_path: Path) -> None:
    whole, traced.found = traced.found, recording(tmp_path, rank(0), problems=("the profiler is in use",))
    with pytest.raises(FlatoutError, match="the job could not be traced: the profiler is in use") as caught:
        runner(tmp_path).profile(NOTHING)
    assert caught.value.hint is not None and caught.value.hint.endswith("runs/profile-000/output.log")
    traced.found = whole
    runner(tmp_path).profile(NOTHING)
    assert len(traced.commands) == 2


@pytest.mark.parametrize(("usual_s", "limit_s"), [(10.0, 60.0), (30.0, 150.0), (90.0, 200.0)])
def test_a_profile_has_five_times_a_trial_or_what_is_left_of_the_budget(
    traced: Job, tmp_path: Path, usual_s: float, limit_s: float
) -> None:
    """The time that a trial's end takes is not kept back: nothing follows a profile that the budget cuts off."""
    made = runner(tmp_path, budget_s=200.0)
    parts = ("launch", "import", "setup", "group", "evaluation", "first_batch", "first_step", "warmup", "end")
    costs = StartCosts(**{f"{part}_s": 25.0 for part in parts})
    made._complete = [TrialResult(index=0, arm="baseline", outcome="completed", step_s=(1.0,), start_costs=costs)]
    made.usual_s = usual_s
    made.profile(NOTHING)
    assert traced.limits == [pytest.approx(limit_s, abs=1)]


def test_a_profile_that_is_ended_by_its_limit_says_so_and_its_files_are_settled(job: Job, tmp_path: Path) -> None:
    job.code, job.is_timed_out = 1, True  # torchrun ends with 1 when it is asked to end
    job.found = recording(tmp_path, problems=("the command was ended by signal 15",))
    with pytest.raises(TracedTooLateError, match="could not be traced within 1800 s, and was ended") as caught:
        runner(tmp_path).profile(NOTHING)
    assert caught.value.hint.endswith("runs/profile-000/output.log")
    assert not (tmp_path / "runs" / "profile-000" / "saved").exists()


def test_a_job_that_fails_before_it_trains_is_told_by_its_own_last_words(job: Job, tmp_path: Path) -> None:
    job.code, job.prints = 2, "python: can't open file 'main.py'\n"
    job.found = recording(tmp_path)
    with pytest.raises(FlatoutError, match=r"could not be traced: python: can't open file 'main.py'"):
        runner(tmp_path).profile(NOTHING)
