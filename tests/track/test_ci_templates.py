"""The action and the CI templates: their shell lines run in a scratch repository, with the real `flatout track`.

What measures (`profile`, `compare`) is replaced by a program that prints a prepared result, and pip by one that notes
what it was asked to install.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.track.series import noisy
from tests.warm.tasks import warm_tasks

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "templates" / "ci"
RESULTS = ROOT / "tests" / "data" / "readers" / "results"
MACHINE = "NVIDIA H200, 2 ranks, 1 host"

pytestmark = pytest.mark.usefixtures("warm")


class Scratch:
    """A git repository, and programs that stand before the real ones on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.folder.mkdir()
        self.programs = folder / "bin"
        self.installed = folder / "installed"
        python = warm_tasks().write_python(folder / "warm")
        self.programs.mkdir()
        self._program(
            "python", f'if [ "$2" = pip ]; then echo "$@" >> {self.installed}; exit 0; fi; exec {python} "$@"'
        )
        self._program(
            "flatout",
            f'if [ "$1" = track ]; then exec {python} -m flatout "$@"; fi\n'
            f'echo "$@" >> {folder}/measured\ncat {folder}/prepared.json\nexit $(cat {folder}/code)',
        )
        self.measured = folder / "measured"
        self._prepared, self._code = folder / "prepared.json", folder / "code"
        self.environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
        for words in (
            ("git", "init", "--quiet"),
            ("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "one"),
        ):
            subprocess.run(words, cwd=self.folder, env=self.environment, check=True)

    def _program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def prepare(self, record: dict[str, Any], *, code: int = 0) -> None:
        self._prepared.write_text(json.dumps(record))
        self._code.write_text(str(code))

    def run(self, lines: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", lines],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def write_history(self, path: Path, levels: list[float], *, job: str) -> None:
        lines = [
            json.dumps(
                {
                    "schema": "flatout/track",
                    "version": 1,
                    "job": job,
                    "machine": MACHINE,
                    "source": "flatout/diagnosis",
                    "measures": [{"name": "step_s", "value": value, "unit": "s", "direction": "lower"}],
                    "measured_unix_s": 1e9 + number,
                    "digest": str(number),
                },
                separators=(",", ":"),
            )
            for number, value in enumerate(map(float, noisy(levels, noise=0.005)))
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


def profile(step_s: float) -> dict[str, Any]:
    return {
        "schema": "flatout/diagnosis",
        "version": 2,
        "command": ["flatout", "profile", "--light", "--json", "--", "python", "train.py"],
        "job": {"num_ranks": 2, "device": "NVIDIA H200", "regular_step_s": step_s},
        "ranks": [],
    }


def comparison() -> dict[str, Any]:
    record = json.loads((RESULTS / "comparison.json").read_text())
    assert isinstance(record, dict)
    return record


SLOWER = [0.1] * 20 + [0.12] * 8
ALIKE = [0.1] * 28
JOB = {"FLATOUT_JOB": "python train.py", "FLATOUT_GATE": "3%"}


def run_action(scratch: Scratch, inputs: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the steps of the action as GitHub does: values by `env`, outputs by a file, the first failure ends it."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    values = {name: str(one.get("default", "")) for name, one in action["inputs"].items()} | inputs
    outputs: dict[str, dict[str, str]] = {}

    def expression(text: str) -> str:
        source = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)
        return re.sub(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", lambda match: outputs[match[1]][match[2]], source)

    for step in action["runs"]["steps"]:
        condition = re.fullmatch(r"inputs\.(\w+) != ''", step.get("if", ""))
        if condition is not None and not values[condition[1]]:
            continue
        assert "${{" not in step["run"]  # an input in a script could run commands
        output = scratch.folder / ".output"
        output.write_text("")
        variables = {name: expression(text) for name, text in step.get("env", {}).items()}
        summary = str(scratch.folder / "summary.md")
        done = scratch.run(step["run"], GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=summary, **variables)
        outputs[step.get("id", step["name"])] = {
            **dict(line.split("=", 1) for line in output.read_text().splitlines()),
            "printed": done.stdout + done.stderr,
        }
        if done.returncode:
            return done.returncode, outputs
    return 0, outputs


def test_the_action_is_composite_and_each_step_names_its_shell() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    assert all({"name", "shell", "run"} <= step.keys() for step in action["runs"]["steps"])
    assert all("description" in one for one in action["inputs"].values())
    identities = {step.get("id") for step in action["runs"]["steps"]}
    for output in action["outputs"].values():
        (step,) = re.findall(r"steps\.(\w+)\.outputs", output["value"])
        assert step in identities


def test_the_action_measures_adds_checks_and_reports(scratch: Scratch) -> None:
    scratch.prepare(profile(0.1))
    scratch.write_history(scratch.folder / "history.jsonl", ALIKE, job="python train.py")
    code, outputs = run_action(
        scratch, {"measure": "profile --light -- python 'my script.py'", "history": "history.jsonl"}
    )
    assert code == 0, outputs
    assert scratch.installed.read_text() == "-m pip install flatout\n"
    assert scratch.measured.read_text() == "profile --json --light -- python my script.py\n"
    lines = (scratch.folder / "history.jsonl").read_text().splitlines()
    assert len(lines) == 29
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=scratch.folder, capture_output=True, text=True, check=True)
    assert json.loads(lines[-1])["commit"]["id"] == head.stdout.strip()
    assert "step\\_s" in (scratch.folder / "summary.md").read_text()
    assert "<testsuites" in (scratch.folder / outputs["report"]["junit"]).read_text()
    assert "<!doctype html>" in (scratch.folder / outputs["check"]["page"]).read_text()


def test_the_action_fails_with_an_annotation_if_the_job_became_slower(scratch: Scratch) -> None:
    scratch.prepare(profile(0.12))
    scratch.write_history(scratch.folder / "history.jsonl", SLOWER, job="train")
    inputs = {"measure": "profile -- python train.py", "history": "history.jsonl", "name": "train", "install": ""}
    code, outputs = run_action(scratch, inputs)
    assert code == 1
    assert "::error title=step_s%3A failed::worse, +" in outputs["check"]["printed"]
    assert not scratch.installed.exists()


def test_the_action_reports_a_comparison_before_it_ends_with_its_code(scratch: Scratch) -> None:
    scratch.prepare(comparison(), code=1)
    code, outputs = run_action(scratch, {"measure": "compare --a-ref main --b-ref HEAD --gate 3% -- python train.py"})
    assert code == 1
    assert "::error title=cost_relative_to_a%3A failed::verdict: worse" in outputs["report"]["printed"]
    scratch.prepare({}, code=2)
    code, outputs = run_action(scratch, {"measure": "compare -- python train.py"})
    assert code == 2
    assert "report" not in outputs


def script(job: dict[str, Any]) -> str:
    """Return the lines that a runner of GitLab runs in one shell."""
    return "\n".join([*job["before_script"], *job["script"]])


def test_gitlab_compares_a_merge_request(scratch: Scratch) -> None:
    job = yaml.safe_load((TEMPLATES / "gitlab-ci.yml").read_text())["flatout compare"]
    variables = {**JOB, "CI_MERGE_REQUEST_DIFF_BASE_SHA": "a1", "CI_COMMIT_SHA": "b2"}
    for code in (0, 1, 3):
        scratch.prepare(comparison(), code=code)
        assert scratch.run(script(job), **variables).returncode == code
    assert "<testsuites" in (scratch.folder / job["artifacts"]["reports"]["junit"]).read_text()
    assert "--a-ref a1 --b-ref b2 --gate 3% -- python train.py" in scratch.measured.read_text()


@pytest.mark.parametrize(("levels", "step_s", "code"), [(ALIKE, 0.1, 0), (SLOWER, 0.12, 1)])
def test_gitlab_tracks_the_default_branch(scratch: Scratch, levels: list[float], step_s: float, code: int) -> None:
    file = yaml.safe_load((TEMPLATES / "gitlab-ci.yml").read_text())
    job, history = file["flatout track"], file["variables"]["FLATOUT_HISTORY"]
    scratch.prepare(profile(step_s))
    scratch.write_history(scratch.folder / history, levels, job="python train.py")
    done = scratch.run(script(job), **JOB, FLATOUT_HISTORY=history)
    assert done.returncode == code, done.stderr
    assert all((scratch.folder / path).exists() for path in (*job["artifacts"]["paths"], "junit.xml"))


@pytest.mark.parametrize(("levels", "step_s", "code"), [(ALIKE, 0.1, 0), (SLOWER, 0.12, 1)])
def test_jenkins_tracks_on_a_share(scratch: Scratch, levels: list[float], step_s: float, code: int) -> None:
    text = (TEMPLATES / "Jenkinsfile").read_text()
    blocks = re.findall(r"sh '''\n(.*?)'''", text, re.DOTALL)
    assert len(blocks) == 3
    assert text.count("{") == text.count("}")
    scratch.prepare(profile(step_s))
    history = scratch.folder / "share" / "history.jsonl"
    scratch.write_history(history, levels, job="python train.py")
    codes = [scratch.run(block, **JOB, FLATOUT_HISTORY=str(history)).returncode for block in blocks]
    assert codes == [0, 0, code]
    assert (scratch.folder / "junit.xml").exists()


@pytest.mark.parametrize(("levels", "step_s", "code"), [(ALIKE, 0.1, 0), (SLOWER, 0.12, 1)])
def test_argo_tracks_on_a_volume(scratch: Scratch, levels: list[float], step_s: float, code: int) -> None:
    workflow = yaml.safe_load((TEMPLATES / "argo-workflow.yaml").read_text())
    (template,) = workflow["spec"]["templates"]
    container = template["container"]
    assert workflow["spec"]["entrypoint"] == template["name"]
    assert container["command"] == ["bash", "-euc"]
    declared = {parameter["name"] for parameter in workflow["spec"]["arguments"]["parameters"]}
    assert set(re.findall(r"workflow\.parameters\.(\w+)", yaml.dump(workflow))) == declared
    scratch.prepare(profile(step_s))
    history = scratch.folder / "history" / "history.jsonl"
    scratch.write_history(history, levels, job="python train.py")
    values = {**JOB, "FLATOUT_HISTORY": str(history), "FLATOUT_COMMIT": "c" * 40, "FLATOUT_IMAGE": "train:7"}
    assert {one["name"] for one in container["env"]} == values.keys()
    done = scratch.run(container["args"][0], **values)
    assert done.returncode == code, done.stderr
    added = json.loads(history.read_text().splitlines()[-1])
    assert (added["commit"]["id"], added["environment"]["image"]) == ("c" * 40, "train:7")
