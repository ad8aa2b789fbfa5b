"""`flatout.toml`: what it sets, what wins over it, and what it cannot set; and what `flatout init` writes."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from flatout.cli import main, parser
from flatout.cli.settings import MUST_BE_TYPED, options_of, tables

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "examples/traces/healthy_fsdp.tar.xz")
PLAN = '[plan]\nmodel = "llama3-8b"\ncluster = "h100x8"\ntop = 2\nfix = ["tp=2"]\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
    return main()


def plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[dict[str, object], str]:
    assert run(monkeypatch, "plan", *arguments, "--json") == 0
    streams = capsys.readouterr()
    return json.loads(streams.out), streams.err


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flatout.toml").write_text(PLAN)
    from_file, said = plan(monkeypatch, capsys)
    assert len(from_file["layouts"]) == 2  # the default is 10
    assert {one["layout"]["tp"] for one in from_file["layouts"]} == {2}
    assert said.splitlines()[0] == "flatout: from flatout.toml: --model, --cluster, --fix, --top"
    typed, said = plan(monkeypatch, capsys, "--top", "1", "--fix", "tp=4")
    assert len(typed["layouts"]) == 1
    assert {one["layout"]["tp"] for one in typed["layouts"]} == {4}
    assert said.splitlines()[0] == "flatout: from flatout.toml: --model, --cluster"


def test_the_command_that_a_result_names_has_the_options_of_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flatout.toml").write_text(PLAN)
    result, _ = plan(monkeypatch, capsys, "--top", "1")
    words = ["flatout", "plan", "--model", "llama3-8b", "--cluster", "h100x8", "--fix", "tp=2", "--top", "1", "--json"]
    assert result["command"] == words


def test_a_command_without_a_table_says_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flatout.toml").write_text(PLAN)
    assert run(monkeypatch, "explain", "straggler") == 0
    assert "flatout.toml" not in capsys.readouterr().err


def test_flags_and_commands_in_groups_are_set(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "jobs.csv").write_text("submit_s,num_gpus,duration_s\n0,8,100\n0,8,100\n")
    (here / "flatout.toml").write_text(
        '[schedule.replay]\nnodes = 1\ngpus-per-node = 8\npolicy = ["fifo", "srtf"]\njson = true\n'
    )
    assert run(monkeypatch, "schedule", "replay", "jobs.csv") == 0
    result = json.loads(capsys.readouterr().out)
    assert [policy["policy"] for policy in result["policies"]] == ["fifo", "srtf"]
    assert result["command"][:5] == ["flatout", "schedule", "replay", "--nodes", "1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("top = 1", "`top` is not a command of flatout"),
        ("[tun]", "`tun` is not a command of flatout; the nearest one is `tune`"),
        ("[tun]\nbudget = 1", "`tun` is not a command of flatout; the nearest one is `tune`"),
        ('[tune]\nbudgt = "3m"', "`tune.budgt` is not an option of `flatout tune`; the nearest one is `budget`"),
        ("[tune]\nforce = true", "`tune.force` cannot be set in a file: pass `--force` on the command line"),
        ("[tune]\napply = true", "`tune.apply` cannot be set in a file"),
        ("[run]\ntake-over = true", "`run.take-over` cannot be set in a file"),
        ("[bench]\nallow-write = true", "`bench.allow-write` cannot be set in a file"),
        ('[compare]\na-python = "x"', "`compare.a-python` cannot be set in a file"),
        ('[compress]\neval = "x"', "`compress.eval` cannot be set in a file"),
        ('[plan.place]\nmodel = "evil.py:m"', "`plan.place.model` cannot be a Python file, which is executed"),
        ('[tune]\nblocks = "yes"', "`tune.blocks` must be true or false, but is 'yes'"),
        ('[tune]\nbudget = ["1m"]', "`tune.budget` must be one value, but is a list of 1"),
        ("[tune]\nbudget = true", "`tune.budget` must be a text or a number, but is True"),
        ("[tune.nccl]\nknob = 1", "`tune.nccl.knob` is not an option of `flatout tune nccl`"),
        ("[schedule]\nnodes = 1", "`schedule.nodes` is not an option of `flatout schedule`"),
        ('[plan]\nrisk = "200%"', "`--risk` must be a number above 0 and at most 100, but is `200%`"),
        ("[plan", "is not valid TOML"),
    ],
)
def test_what_cannot_stand_in_the_file_is_one_line(
    text: str, problem: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "flatout.toml").write_text(text)
    code = run(monkeypatch, "plan", "--model", "llama3-8b", "--cluster", "h100x8", "--top", "1")
    said = capsys.readouterr().err
    assert code == 2
    assert len(said.splitlines()) == 2
    assert said.startswith("error: `flatout.toml`")
    assert problem in said


def test_init_writes_a_file_that_sets_nothing_and_names_every_option(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "init") == 0
    text = (here / "flatout.toml").read_text()
    content = tomllib.loads(text)
    known = tables(parser())
    assert {place.split(".")[0] for place in known} >= set(content)
    assert "force" not in text.split("\n\n", 1)[1].replace("--force", "")
    assert run(monkeypatch, "explain", "straggler") == 0  # an untouched file changes nothing
    assert run(monkeypatch, "init") == 2
    assert "already exists" in capsys.readouterr().err


def test_every_example_of_init_is_toml_of_the_right_form(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "init", "--out", "-") == 0
    lines = capsys.readouterr().out.splitlines()
    keys = [line for line in lines if line.startswith("# ") and " = " in line and line[2:].split(" = ")[0].strip("-")]
    settings = [line[2:] for line in keys if line[2:].split(" = ")[0].replace("-", "").replace("_", "").isalnum()]
    by_name = {line.split(" = ")[0]: tomllib.loads(line) for line in settings if " " not in line.split(" = ")[0]}
    named = {name for table in tables(parser()).values() for name in options_of(table.command)}
    assert named - set(by_name) == set()
    assert set(by_name) & MUST_BE_TYPED == set()
