"""`flatout submit` with a plan and with what keeps a job alive: what would be queued, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.emit.tunings import every_change, tuning

from flatout.cli import main
from flatout.emit import tuned_toml

PLAN = ["plan", "--model", "llama3-8b", "--cluster", "h100x16", "--global-batch", "64", "--seq", "2048", "--top", "1"]


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["flatout", *words])
    code = main()
    out, err = capfd.readouterr()
    return code, out, err


def dry(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = run(monkeypatch, capfd, "submit", "--dry-run", "--json", "--to", "slurm", *words)
    assert code == 0, err
    return json.loads(out)


def shown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, err = run(monkeypatch, capfd, "submit", "--dry-run", *words)
    assert code == 0, err
    return out


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, **changed: object) -> str:
    """As a plan begins, with the degrees in which the tests differ."""
    degrees = {"tp": 2, "pp": 1, "cp": 1, "dp": 6} | {key: changed.pop(key) for key in ("tp", "dp") if key in changed}
    content = {"schema": "flatout/plan", "version": 1, "cluster": "ours", "layouts": [{"layout": degrees}]} | changed
    (folder / "plan.json").write_text(json.dumps(content))
    return "plan.json"


def test_nodes_and_gpus_are_those_of_a_real_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(monkeypatch, capfd, *PLAN, "--fix", "tp=2", "--json")
    (folder / "plan.json").write_text(out)
    found = dry(monkeypatch, capfd, "--plan", "plan.json", "--", "python", "train.py")
    assert "--nodes=2 --gpus-per-node=8" in found["submitted"]
    assert (found["num_nodes"], found["gpus_per_node"], found["plan"]) == (2, 8, "plan.json")
    assert found["layout"].startswith("TP2")
    assert found["queued"] == "python train.py"
    said = shown(
        monkeypatch, capfd, "--to", "slurm", "--plan", "plan.json", "--nodes", "2", "--gpus", "8", "--", "true"
    )
    assert (
        f"\nlayout: {found['layout']}, but only if the command's own arguments select it: see flatout plan --emit\n"
        in said
    )
    assert list(folder.iterdir()) == [folder / "plan.json"]


def test_a_plan_of_an_own_cluster_needs_the_gpus_of_a_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = dry(monkeypatch, capfd, "--plan", written(folder), "--gpus", "4", "--", "true")
    assert (found["num_nodes"], found["gpus_per_node"]) == (3, 4)


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ({}, [], "`--plan` needs --gpus, the GPUs per node: the plan says only that ours has 12 in total"),
        ({}, ["--gpus", "0"], "needs --gpus"),
        ({}, ["--gpus", "8"], "12 GPUs must be whole nodes, but a node has 8"),
        ({}, ["--gpus", "4", "--nodes", "2"], "12 GPUs are 3 nodes of 4, but --nodes is 2"),
        ({"cluster": "h100x16", "dp": 8}, ["--gpus", "4"], "h100x16 has 8 GPUs per node, but --gpus is 4"),
        ({"cluster": "h100x16"}, [], "uses 12 of h100x16"),
        ({"schema": "flatout/tuning"}, [], "has flatout/tuning, version 1"),
        ({"version": 2}, [], "has flatout/plan, version 2"),
        ({"layouts": []}, [], "has no layout"),
        ({"dp": 0}, ["--gpus", "8"], "is not a plan"),
        ({"tp": "2"}, ["--gpus", "8"], "is not a plan"),
    ],
)
def test_what_is_no_plan_or_contradicts_it_is_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    changed: dict[str, object],
    words: list[str],
    said: str,
) -> None:
    plan = written(folder, **changed)
    code, out, err = run(monkeypatch, capfd, "submit", "--dry-run", "--to", "slurm", "--plan", plan, *words, "--", "x")
    assert (code, out) == (2, "")
    assert said in err.splitlines()[0]
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", None])
def test_any_bytes_are_refused_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: bytes | None
) -> None:
    if text is not None:
        (folder / "plan.json").write_bytes(text)
    code, _, err = run(monkeypatch, capfd, "submit", "--dry-run", "--to", "slurm", "--plan", "plan.json", "--", "x")
    assert code == 2
    assert err.startswith("error: `")
    assert len(err.splitlines()) <= 2


def test_flatout_run_stands_around_srun_and_alone_applies_what_was_tuned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    some = [change for change in every_change() if (change.environment or change.patch) and not change.knob.excludes]
    of_each = {bool(change.patch): change for change in some}.values()
    (folder / "tuned.toml").write_text(tuned_toml.emit(tuning(*of_each)).text)
    said = shown(
        monkeypatch, capfd, "--to", "slurm", "--gpus", "8", "--nodes", "2", "--config", "tuned.toml",
        "--max-restarts", "3", "--checkpoint", "a b.pt", "--resume-arg=--resume last", "--checkpoint-folder", "ckpts",
        "--ledger", "l.jsonl", "--", "python", "train.py",
    )  # fmt: skip
    command = (
        f"flatout run --config {folder / 'tuned.toml'} --max-restarts 3 --checkpoint-folder ckpts "
        "--checkpoint 'a b.pt' '--resume-arg=--resume last' --ledger l.jsonl --gpus 16 -- "
    )
    assert f"\ncommand: {command}python train.py\n" in said
    script = said.replace(" \\\n    ", " ")
    assert f'\n{command}srun --kill-on-bad-exit=1 bash -c "$on_rank" bash python train.py\n' in script
    assert "\n#SBATCH --ntasks-per-node=8\n" in script
    job = script[: script.index("\ncommand: ")].partition("job.sbatch:\n")[2]
    assert job.count("--config") == 1  # applied once: flatout run sets variables and arguments
    exported = [line for line in job.splitlines() if line.startswith("export ")]
    assert exported == ['export MASTER_ADDR="$head_node" MASTER_PORT="$rdzv_port"']  # nothing of the tuning's


@pytest.mark.parametrize("to", ["ray", "kubernetes"])
def test_elsewhere_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], to: str
) -> None:
    said = shown(monkeypatch, capfd, "--to", to, "--max-restarts", "3", "--", "python", "train.py")
    assert "command: flatout run --max-restarts 3 -- python train.py" in said
    assert "--config" not in said
    assert "must have flatout\n" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-restarts", "3", "--resume-arg=--resume"], "no `--checkpoint` says where it is"),
        (["--checkpoint", "x", "--resume-arg=--resume"], "`--resume-arg` is added on restarts"),
        (["--ledger", ""], "a path must not be empty"),
    ],
)
def test_combinations_are_refused_as_flatout_run_refuses_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(monkeypatch, capfd, "submit", "--dry-run", "--to", "slurm", *words, "--", "x")
    assert (code, out) == (2, "")
    assert said in err


def test_a_job_that_is_requeued_has_its_flag_to_resume_from_flatout_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--resume", "--max-restarts", "1", "--checkpoint", "x", "--resume-arg=--go-on"]
    found = dry(monkeypatch, capfd, *words, "--", "true")
    assert found["notes"] == [] and "--resume-arg=--go-on" in found["queued"]
