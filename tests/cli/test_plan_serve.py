"""`flatout plan serve`, from its options to its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatout.cli import main

SERVE = ["plan", "serve", "--model", "llama3.1-70b", "--gpu", "h100", "--rate", "5", "--weights", "fp8"]
LIMITS = ["--ttft", "500ms", "--itl", "0.05s"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
    return main()


def test_json_text_and_page_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    assert run(monkeypatch, *SERVE, *LIMITS, "--html", str(page), "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["schema"] == "flatout/serving-plan"
    best = result["options"][0]
    assert run(monkeypatch, *SERVE, *LIMITS) == 0
    said = capfd.readouterr().out
    assert said.startswith(f"llama3.1-70b on {best['num_gpus']} GPUs (H100 SXM 80GB)")
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []
    tune = "flatout tune --serve 'vllm serve llama3.1-70b --tensor-parallel-size 2'"
    assert said.splitlines()[-1] == f"next: {tune} --load load.toml --slo 'p99 ttft<500ms, p99 itl<50ms'"
    written = page.read_text()
    assert f"llama3.1-70b on {best['num_gpus']} GPUs" in written
    assert "published results of dense models" in written
    assert "<script" not in written
    assert run(monkeypatch, *SERVE, "--html", str(page)) == 2
    assert "already exists" in capfd.readouterr().err


def test_limits_that_no_number_of_gpus_meets_end_with_1_and_say_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SERVE, "--itl", "1ms") == 1
    said = " ".join(capfd.readouterr().out.split())
    assert "no number of GPUs answers within these limits" in said
    assert "TP 8 the next token of a request that is alone takes" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SERVE, "--rate", "0"], "`--rate` must be a number above 0"),
        ([*SERVE, "--rate", "1e9"], "`--rate` must be a number above 0 and at most 1,000,000"),
        (
            [*SERVE, "--ttft", "500"],
            "`--ttft` must have a unit, but is `500`: write 500ms",
        ),
        ([*SERVE, "--kv-cache", "int3"], "`--kv-cache` must be one of"),
        (["plan", "--seq", "8", "serve", "--model", "x"], "`--seq` precedes `serve`"),
        (["plan", "serv"], "the commands are `evaluate`, `place` and `serve`"),
    ],
)
def test_bad_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert message in said.err
    assert "Traceback" not in said.err
