"""`flatout plan` as a user types it."""

from __future__ import annotations

import json
import sys

import pytest

from flatout.cli import main

PLAN = ["plan", "--model", "llama3-8b", "--cluster", "h100x16", "--global-batch", "64", "--seq", "2048"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
    return main()


def test_a_plan_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, *PLAN, "--json", "--top", "4") == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["schema"], said["version"]) == ("flatout/plan", 1)
    assert len(said["layouts"]) == 4
    assert len(said["worth_measuring"]) == 3
    assert said["num_parameters"] == 8_030_261_248


def test_a_plan_as_text_ends_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--fix", "tp=2") == 0
    said = capfd.readouterr().out
    assert "Why its neighbours lost" in said
    assert said.rstrip().splitlines()[-1].startswith("next: flatout plan --model llama3-8b")
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "a plan needs --model and --cluster"),
        (["plan", "evaluate"], "needs a CSV"),
        (["plan", "prove"], "the only action is `evaluate`"),
        (["plan", "evaluate", "missing.csv"], "cannot be read"),
        ([*PLAN, "--precision", "int3"], "--precision must be one of"),
        ([*PLAN[:2], "missing/config.json", *PLAN[3:]], "cannot be read"),
        ([*PLAN, "--fix", "tp=5"], "tp must divide 32 heads"),
    ],
)
def test_bad_input_is_an_error_line_and_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said
