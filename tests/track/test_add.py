"""What is recorded of a result: measures by the kind of result, job, class of machine, commit and environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import InputError, UsageError
from flatout.records.tracking import TrackedResult
from flatout.track import origin
from flatout.track.add import AddRequest, add_results
from flatout.track.history_file import read_history
from flatout.track.origin import commit_here, facts_here

READERS = Path(__file__).parents[1] / "data" / "readers"
RESULTS = READERS / "results"


def added(tmp_path: Path, path: Path, **options: Any) -> TrackedResult:
    history = tmp_path / "history.jsonl"
    history.unlink(missing_ok=True)
    add_results(history, [path], AddRequest(**options))
    (only,) = read_history(history).results
    return only


def values(result: TrackedResult) -> dict[str, tuple[float, str, str]]:
    return {each.name: (each.value, each.unit, each.direction) for each in result.measures}


def test_a_tuning_has_the_step_of_the_unchanged_job(tmp_path: Path) -> None:
    result = added(tmp_path, RESULTS / "tuning.json", machine="m")
    assert values(result) == {"step_s": (0.010928290499415457, "s", "lower")}
    assert (result.job, result.source) == ("python train.py", "flatout/tuning")
    assert result.environment["torch"] == "2.13.0"
    assert result.measured_unix_s == 1795948148.0  # 2026-11-29T10:29:08Z


def test_a_tuning_with_changes_has_both_sides_and_a_neutral_speedup(tmp_path: Path) -> None:
    record = json.loads((RESULTS / "tuning.json").read_text())
    record |= {"changes": [{}], "tuned_step_s": 0.008, "speedup": 1.3, "interval": [1.2, 1.4]}
    record |= {"baseline_peak_memory_bytes": 2000, "tuned_peak_memory_bytes": 1000, "machine": {"device": "H200"}}
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(record))
    result = added(tmp_path, path)
    assert values(result) == {
        "step_s": (0.010928290499415457, "s", "lower"),
        "peak_memory_bytes": (2000.0, "B", "lower"),
        "tuned_step_s": (0.008, "s", "lower"),
        "tuned_peak_memory_bytes": (1000.0, "B", "lower"),
        "speedup": (1.3, "", "neutral"),
    }
    assert [(each.low, each.high) for each in result.measures if each.name == "speedup"] == [(1.2, 1.4)]
    assert result.machine == "H200"


def test_a_comparison_has_the_cost_of_b_relative_to_a_and_its_commit(tmp_path: Path) -> None:
    result = added(tmp_path, RESULTS / "comparison.json", machine="m")
    measures = {each.name: each for each in result.measures}
    relative = measures["cost_relative_to_a"]
    assert (relative.value, relative.low, relative.high) == pytest.approx((1.25, 1 / 0.85, 1 / 0.75))
    assert relative.direction == "lower"
    assert measures["step_s"].value == 0.0625
    assert measures["steps.data_loading"].is_part
    assert result.commit is not None
    assert result.commit.id == "2" * 40
    assert result.environment["compared with"] == "1" * 40


def test_a_bench_has_each_rate_with_its_spread(tmp_path: Path) -> None:
    result = added(tmp_path, READERS / "ceilings.json", machine="m")
    matmul = {each.name: each for each in result.measures}["matmul.fp32.256x256x256"]
    assert (matmul.value, matmul.unit, matmul.direction) == (3290455713.3566422, "FLOP/s", "higher")
    assert matmul.high == pytest.approx(3290455713.3566422 + 27032828174.80489 / 2)
    assert matmul.low == 0.0  # a rate is not below 0
    assert result.job == "flatout bench"


def test_the_rate_of_many_ranks_is_their_median(tmp_path: Path) -> None:
    record = json.loads((READERS / "ceilings.json").read_text())
    one = record["measurements"][0]
    record["measurements"] = [one | {"value": rate, "ranks": [rank]} for rank, rate in enumerate((10.0, 30.0, 20.0))]
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(record))
    assert [each.value for each in added(tmp_path, path, machine="m").measures] == [20.0]


def test_a_profile_has_steps_and_parts(tmp_path: Path) -> None:
    record = {
        "schema": "flatout/diagnosis",
        "command": ["flatout", "profile", "--json", "--", "torchrun", "--api-key", "hunter22", "train.py"],
        "job": {"num_ranks": 2, "device": "H200", "regular_step_s": 0.1, "mean_step_s": 0.11, "mfu": 0.4},
        "ranks": [
            {"steps": [{"parts_s": {"compute": 0.08, "wait": 0.0}}]},
            {"steps": [{"parts_s": {"compute": 0.04, "wait": 0.04}}]},
        ],
    }
    path = tmp_path / "profile.json"
    path.write_text("output of the job\n" + json.dumps(record) + "\n")
    result = added(tmp_path, path)
    assert values(result) == {
        "step_s": (0.1, "s", "lower"),
        "mean_step_s": (0.11, "s", "lower"),
        "mfu": (0.4, "", "higher"),
        "parts.compute": (pytest.approx(0.06), "s", "lower"),
        "parts.wait": (pytest.approx(0.02), "s", "lower"),
    }
    assert result.machine == "H200, 2 ranks, 1 host"
    assert "hunter22" not in (tmp_path / "history.jsonl").read_text()


def test_a_light_recording_and_a_ledger_have_their_measures(tmp_path: Path) -> None:
    recording = added(tmp_path, RESULTS / "recording.json", machine="m")
    assert values(recording)["step_s"] == (0.067444941, "s", "lower")
    assert recording.job == "python job.py"
    ledger = added(tmp_path, RESULTS / "ledger.json", job="j", machine="m")
    record = json.loads((RESULTS / "ledger.json").read_text())
    assert values(ledger)["goodput"] == (record["goodput"], "", "higher")
    assert values(ledger)["device_s_per_step"][0] == record["allocated_device_s"] / record["steps"]


def test_a_job_without_a_name_and_unknown_cpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say which job"):
        added(tmp_path, RESULTS / "ledger.json")
    with pytest.raises(UsageError, match="does not say which CPUs"):
        added(tmp_path, RESULTS / "recording.json")  # of another host
    with pytest.raises(UsageError, match="does not say which CPUs"):
        added(tmp_path, RESULTS / "tuning.json", is_elsewhere=True)
    assert not (tmp_path / "history.jsonl").exists()


def test_on_cpus_of_this_machine_their_model_is_the_class(tmp_path: Path) -> None:
    result = added(tmp_path, RESULTS / "tuning.json")
    assert result.machine == f"{origin.cpu_here()}, 1 rank, 1 host"
    assert result.environment["host"] == facts_here()["host"]
    assert "host" not in added(tmp_path, RESULTS / "tuning.json", machine="m", is_elsewhere=True).environment


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not the JSON of a result"),
        ("[1]", "is not an object"),
        ('{"schema": "flatout/plan"}', "has the schema `flatout/plan`"),
        ('{"schema": "flatout/tuning", "job_command": ["x"]}', "has no measure"),
        ('{"schema": "flatout/tuning", "baseline_step_s": NaN}', "is not the JSON of a result"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        added(tmp_path, path)


def test_nothing_is_added_if_one_of_several_is_refused(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    with pytest.raises(InputError):
        add_results(history, [RESULTS / "tuning.json", tmp_path / "missing.json"], AddRequest(machine="m"))
    assert not history.exists()


def test_facts_of_the_user_are_kept_and_must_have_a_name(tmp_path: Path) -> None:
    result = added(tmp_path, RESULTS / "tuning.json", machine="m", settings=("image=train:7", "torch=2.99"))
    assert result.environment["image"] == "train:7"
    assert result.environment["torch"] == "2.99"
    for setting in ("image", "=7", " =7"):
        with pytest.raises(UsageError, match="must be NAME=VALUE"):
            added(tmp_path, RESULTS / "tuning.json", machine="m", settings=(setting,))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    for words in (
        ("init", "--quiet", "--initial-branch", "trunk"),
        ("config", "user.email", "a@b"),
        ("config", "user.name", "a"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "train.py").write_text("1")
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    subprocess.run(
        ["git", "commit", "--quiet", "-m", "one", "--date", "2026-01-02T03:04:05Z"],
        cwd=folder,
        check=True,
        env={"GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    return folder


def test_the_commit_of_a_folder_has_its_time_branch_and_changes(repository: Path) -> None:
    commit = commit_here({}, folder=repository)
    assert commit is not None
    assert (len(commit.id), commit.branch, commit.is_modified) == (40, "trunk", False)
    assert commit.unix_s == 1767323045.0
    (repository / "train.py").write_text("2")
    changed = commit_here({"GITHUB_HEAD_REF": "topic"}, folder=repository)
    assert changed is not None
    assert (changed.branch, changed.is_modified) == ("topic", True)


def test_without_a_repository_the_ci_system_names_the_commit(tmp_path: Path) -> None:
    assert commit_here({}, folder=tmp_path) is None
    commit = commit_here({"CI_COMMIT_SHA": "abc", "CI_COMMIT_REF_NAME": "main"}, folder=tmp_path)
    assert commit is not None
    assert (commit.id, commit.branch) == ("abc", "main")


def test_a_named_commit_is_resolved_where_the_repository_knows_it(repository: Path) -> None:
    here = commit_here({}, folder=repository)
    assert here is not None
    assert origin.commit_named("HEAD", folder=repository).id == here.id
    assert origin.commit_named("v9", folder=repository).id == "v9"
    assert origin.commit_named("--output=x", folder=repository).id == "--output=x"
    assert not (repository / "x").exists()
