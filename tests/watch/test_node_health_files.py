"""The emitted health checks: what they do with each exit code of `flatout watch node`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from flatout.watch.emit.targets import emitted

FILES = {each.path: each.text for each in emitted("node-health")}
VERDICT = "drain this node: 1 sign of a fault"


def run(script: str, code: int, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a script with stand-ins of `flatout` and `scontrol`. Return also the calls of `scontrol`."""
    for name, text in (
        ("flatout", f"echo '{VERDICT}'; echo more; exit {code}"),
        ("scontrol", f'printf "%s\\n" "$*" >> {folder}/calls'),
    ):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURMD_NODENAME": "n7",
        "GPU_HISTORY": str(folder / "history" / "gpus"),
    }
    done = subprocess.run(["sh", "-c", FILES[script]], env=environment, capture_output=True, text=True, check=False)
    calls = folder / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("code", "is_drained"), [(0, False), (1, True), (2, False), (127, False)])
def test_slurm_drains_a_node_only_where_an_action_is_called_for(code: int, is_drained: bool, tmp_path: Path) -> None:
    done, calls = run("flatout-slurm-check.sh", code, tmp_path)
    assert done.returncode == 0
    assert calls == ([f"update NodeName=n7 State=DRAIN Reason=flatout: {VERDICT}"] if is_drained else [])
    assert (tmp_path / "history").is_dir()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_node_problem_detector_gets_one_line_and_the_exit_code(code: int, tmp_path: Path) -> None:
    done, _ = run("flatout-node-check.sh", code, tmp_path)
    assert (done.returncode, done.stdout) == (code, f"{VERDICT}\n")


def test_the_monitor_sets_one_condition_by_the_emitted_script() -> None:
    monitor = json.loads(FILES["flatout-node-problem.json"])
    (condition,), (rule,) = monitor["conditions"], monitor["rules"]
    assert rule["condition"] == condition["type"] and rule["type"] == "permanent"
    assert Path(rule["path"]).name in FILES
    assert monitor["pluginConfig"]["max_output_length"] >= len(VERDICT)
