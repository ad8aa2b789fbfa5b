"""`flatout schedule replay` as a user runs it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm")


def flatout(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", "schedule", "replay", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(3)
    lines = ["submit_s,num_gpus,duration_s,team"]
    for number in range(300):
        gpus, seconds = draw.choice([1, 1, 1, 2, 8, 16]), draw.choice([60, 600, 20_000])
        lines.append(f"{number * 400},{gpus},{seconds},{draw.choice(['red', 'blue'])}")
    path = tmp_path_factory.mktemp("history") / "jobs.csv"
    path.write_text("\n".join(lines) + "\n300,64,60,red\n")
    return path


def test_json_has_the_contract(history: Path) -> None:
    done = flatout(
        str(history), "--nodes", "4", "--gpus-per-node", "8", "--policy", "fifo", "--policy", "las", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["schema"] == "flatout/replay"
    assert [policy["policy"] for policy in result["policies"]] == ["fifo", "las"]
    for policy in result["policies"]:
        assert policy["num_jobs"] == 300
        assert 0 < policy["goodput"] <= policy["utilization"] <= 1
        assert {"jct_mean_s", "jct_p99_s", "makespan_s", "preemptions", "jobs_per_s"} <= set(policy)
        assert len(policy["series"]["allocated"]) == len(policy["series"]["queued_jobs"])
    assert sum(result["left_out"].values()) == 1
    (difference,) = result["differences"]
    assert difference["low"] <= difference["ratio"] <= difference["high"]


def test_text_says_what_was_skipped_and_assumed_and_what_is_next(history: Path) -> None:
    done = flatout(str(history), "--nodes", "4", "--gpus-per-node", "8", "--policy", "fifo")
    assert done.returncode == 0
    assert "1 job skipped: requests more than the cluster has" in " ".join(done.stdout.split())
    assert "checkpoint every 1800 s" in " ".join(done.stdout.split())
    assert "next: flatout schedule replay" in done.stdout
    assert " on 32 GPUs\n4 nodes, " in done.stdout
    alone = flatout(str(history), "--nodes", "1", "--gpus-per-node", "1", "--policy", "fifo")
    assert " on 1 GPU\n1 node, " in alone.stdout


def test_failures_are_drawn_again_for_each_seed(history: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        '[[nodes]]\ncount = 4\ngpus = 8\ntype = "H100"\n'
        "[types.H100]\nbusy_w = 700\nidle_w = 100\ndollars_per_hour = 2.5\n"
    )
    done = flatout(
        str(history), "--cluster", str(cluster), "--policy", "fifo", "--policy", "skip", "--failures", "500",
        "--seeds", "3", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["differences"][0]["num_seeds"] == 3
    assert result["policies"][0]["failures"] > 0
    assert result["policies"][0]["dollars"] > 0
    assert result["policies"][0]["energy_kwh"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.csv", "--nodes", "4", "--gpus-per-node", "8"], "missing.csv: No such file or directory"),
        (["HISTORY"], "a replay needs a cluster"),
        (["HISTORY", "--nodes", "4", "--gpus-per-node", "8", "--policy", "best"], "--policy must be one of"),
        (["HISTORY", "--nodes", "4", "--gpus-per-node", "8", "--policy", "las", "--policy", "las"], "passed twice"),
        (["HISTORY", "--nodes", "4", "--cluster", "x.toml"], "a cluster is either"),
        (["HISTORY", "--nodes", "1", "--gpus-per-node", "8", "--policy", "fixed"], "fixed shares need the nodes"),
        (["HISTORY", "--nodes", "4", "--gpus-per-node", "8", "--failures", "nan"], "`--failures` must be a number"),
        (
            ["HISTORY", "--nodes", "4", "--gpus-per-node", "8", "--checkpoint", "inf"],
            "`--checkpoint` must be a duration",
        ),
        (["HISTORY", "--repair", "4"], "`--repair` must have a unit, but is `4`: write 4h for hours or 4s for seconds"),
        (["HISTORY", "--starved-after", "14"], "write 14d for days or 14s for seconds"),
        (
            ["HISTORY", "--nodes", "1000000000", "--gpus-per-node", "8"],
            "`--nodes` must be a whole number from 1 to 100,000, but is `1000000000`",
        ),
    ],
)
def test_bad_arguments_end_in_one_line(history: Path, words: list[str], said: str) -> None:
    done = flatout(*[str(history) if word == "HISTORY" else word for word in words])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_next_command_succeeds_as_it_is(history: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    asked = [str(history), "--nodes", "4", "--gpus-per-node", "8", "--policy", "flatout", "--seeds=2"]
    done = flatout(*asked, "--html", str(page))
    assert done.returncode == 0
    said = done.stdout.rstrip().splitlines()[-1]
    assert said == f"next: flatout schedule replay {' '.join(asked)} --failures 2.34"
    assert flatout(*said.split()[4:]).returncode == 0
    assert f"{' '.join(asked)} --failures 2.34" in page.read_text()
