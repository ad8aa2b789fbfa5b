"""`flatout plan` as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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
    assert "Why similar layouts lost" in said
    assert said.rstrip().splitlines()[-1].startswith("next: flatout plan --model llama3-8b")
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "a plan needs --model and --cluster"),
        (["plan", "evaluate"], "missing argument 'RUNS.csv'"),
        (["plan", "--json", "evaluate", "runs.csv"], "`--json` precedes `evaluate`"),
        (["plan", "prove"], "the commands are `evaluate`, `place` and `serve`"),
        (["plan", "evaluate", "missing.csv"], "cannot be read"),
        ([*PLAN, "--precision", "int3"], "--precision must be one of"),
        ([*PLAN[:2], "missing/config.json", *PLAN[3:]], "cannot be read"),
        ([*PLAN, "--fix", "tp=5"], "tp must divide 32 heads"),
        (
            [*PLAN, "--fix", "tp=2", "--fix", "tp=4"],
            "--fix takes one value of a layout parameter, but got `tp=2` and `tp=4`",
        ),
        (["plan", "--model", "llama3-8b", "--cluster", "a100x8", "--precision", "fp8"], "SXM 80GB has no fp8"),
        (["plan", "--model", "llama3-8b", "--cluster", "v100x8"], "has no bf16\nhint: --precision fp16"),
        ([*PLAN, "--fix", "schedule=zero-bubble", "--fix", "pp=1"], "has pp=1 together with schedule=zero-bubble"),
        (
            [
                "plan",
                "--model",
                "llama3-70b",
                "--cluster",
                "h100x4",
                "--fix",
                "tp=1",
                "--fix",
                "pp=1",
                "--fix",
                "zero=0",
            ],
            "other layouts than those with tp=1, pp=1, zero=0 fit on 8 GPUs",
        ),
        (
            ["plan", "--model", "gpt3-13b", "--cluster", "a100x64", "--fix", "schedule=gpipe", "--fix", "pp=4"],
            "other layouts fit on 64 GPUs: remove --fix schedule=gpipe --fix pp=4",
        ),
        (
            [*PLAN, "--goal", "1B tokens", "--gpu-price", "nan"],
            "`--gpu-price` must be a number from 0 to 1,000,000,000, but is `nan`",
        ),
        ([*PLAN, "--shipped"], "no such option: --shipped"),
        (["plan", "--model", "", "--cluster", "h100x8"], "--model` must be a known name"),
        (["plan", "--model", "layers=2,hidden=64,heads=8,kv_heads=3", "--cluster", "h100x8"], "3 of 8"),
        (
            ["plan", "--model", "layers=2,hidden=64,heads=8,experts=4,topk=5,expert_ffn=64", "--cluster", "h100x8"],
            "there are 5 of 4",
        ),
    ],
)
def test_bad_input_is_an_error_line_and_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


HEADER = "layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpu,num_gpus,tp,pp,micro_batch,global_batch,step_time_s"


def plan_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *steps_s: str, mark: str = "") -> int:
    rows = [f"32,4096,32,8,14336,128256,8192,H100,64,1,1,1,128,{step_s}" for step_s in steps_s]
    (tmp_path / "ours.csv").write_text(mark + "\r\n".join([HEADER, *rows]) + "\r\n", encoding="utf-8")
    return run(monkeypatch, *PLAN, "--calibrate", str(tmp_path / "ours.csv"))


def test_a_spreadsheets_csv_is_read_and_unused_rows_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert plan_with(tmp_path, monkeypatch, "2.0", "-1", "nan", mark="\ufeff") == 0
    said = capfd.readouterr()
    assert "of 3 rows" in said.err and "2 are not used" in said.err
    assert "Corrected with 1 measured run from your cluster." in said.out


def test_milliseconds_are_not_taken_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert plan_with(tmp_path, monkeypatch, "2.0", "2000") == 2
    assert "number 2 of the runs took 2,000 s" in capfd.readouterr().err


@pytest.mark.parametrize(("dtype", "tflops"), [("bf15", 740), ("bf16", 74000)])
def test_ceilings_by_hand_are_below_the_peak_of_a_type_that_is_there(
    dtype: str, tflops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'gpu = "h100"\nnum_gpus = 8\n[matmul_tflops]\n{dtype} = {tflops}\n')
    assert run(monkeypatch, "plan", "--model", "llama3-8b", "--cluster", str(path)) == 2
    assert f"but is {dtype} = {tflops}\n" in capfd.readouterr().err


def test_the_number_of_gpus_that_is_named_holds_the_model_and_half_does_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def on(num_gpus: int) -> int:
        return run(monkeypatch, "plan", "--model", "llama3-70b", "--cluster", f"h100x{num_gpus}")

    assert on(1) == 2
    said = capfd.readouterr().err
    named = int(said.partition("it fits on ")[2].split()[0])
    assert on(named) == 0
    assert on(named // 2) == 2
