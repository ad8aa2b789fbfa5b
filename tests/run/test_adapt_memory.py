"""A job that ran out of GPU memory starts again with half the microbatch and twice the passes, until it fits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.keep.beating import Clock, Rank

from flatout.change.micro_batch import halved, micro_batch_of, parse_options, with_micro_batch
from flatout.errors import UsageError
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.records.adaptation import MemoryAdaptation
from flatout.report.adaptation_text import memory_sentence
from flatout.run import RunRequest, prepare, run
from flatout.run.adapt_memory import SETTLED_STEPS, MemoryAdapter

HF = ("torchrun", "train.py", "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "2", "--bf16")
# Fits with a microbatch of at most `FITS`; each step has 32 samples, whatever the microbatch.
SCRIPT = """
import sys
options = dict(word[2:].split("=") for word in sys.argv[1:])
batch, passes = int(options["batch"]), int(options["accumulate"])
with open("runs.txt", "a") as file:
    print(batch, passes, file=file)
if batch > int(options["fits"]):
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB")
"""


@pytest.mark.parametrize(
    ("command", "options", "after"),
    [
        (HF, None, (*HF[:3], "8", "--gradient_accumulation_steps", "4", "--bf16")),
        (
            ("python", "train.py", "--batch_size=12", "--gradient_accumulation_steps=40"),
            None,
            ("python", "train.py", "--batch_size=6", "--gradient_accumulation_steps=80"),
        ),
        (
            ("python", "t.py", "-b", "6", "--acc=1"),
            ("-b", "--acc"),
            ("python", "t.py", "-b", "3", "--acc=2"),
        ),
    ],
)
def test_half_the_microbatch_and_twice_the_passes_are_the_same_samples(
    command: tuple[str, ...], options: tuple[str, str] | None, after: tuple[str, ...]
) -> None:
    own = micro_batch_of(command, options)
    assert own is not None
    half = halved(own)
    assert half is not None and half.batch * half.passes == own.batch * own.passes
    assert with_micro_batch(command, half) == after


@pytest.mark.parametrize("command", [HF[:4], (*HF[:3], "auto", *HF[4:]), ("python", "t.py", "--batch_size=0")])
def test_a_command_that_does_not_state_both_numbers_is_left_alone(command: tuple[str, ...]) -> None:
    assert micro_batch_of(command) is None


@pytest.mark.parametrize("text", ["--batch-size", "--a,--a", "a,b", "--a=1,--b", "--a,--b,--c", "--,--b"])
def test_options_that_are_not_two_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="must name the script's options for its microbatch"):
        parse_options(text)
    assert parse_options("--a, -b") == ("--a", "-b")


def test_options_need_adapt_and_numbers_in_the_command() -> None:
    with pytest.raises(UsageError, match="says what `--adapt` may change"):
        RunRequest(command=HF, micro_batch_options=("--a", "--b")).check()
    with pytest.raises(UsageError, match="`--adapt-power` says what `--adapt` may change"):
        RunRequest(command=HF, adapts_power=True).check()
    with pytest.raises(UsageError, match="a whole number for --a and for --b"):
        RunRequest(command=HF, adapts="on", micro_batch_options=("--a", "--b")).check()


def ran(folder: Path, mode: str, fits: int) -> tuple[int, list[str], list[dict[str, object]]]:
    """Run the script with 8 samples in 4 passes. Return its exit code, its runs and the adaptations in the ledger."""
    (folder / "job.py").write_text(SCRIPT)
    command = (sys.executable, "job.py", "--batch=8", "--accumulate=4", f"--fits={fits}")
    request = RunRequest(
        command=command,
        adapts=mode,  # type: ignore[arg-type]
        micro_batch_options=("--batch", "--accumulate"),
        ledger=folder / "ledger.jsonl",
    )
    request.check()
    code = run(request, prepare(request, os.environ)).shell_code
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "adaptation"]
    return code, (folder / "runs.txt").read_text().splitlines(), told


def test_a_job_restarts_until_it_fits_with_the_same_samples_and_without_a_restart_of_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, runs, told = ran(tmp_path, "on", fits=2)
    assert (code, runs) == (0, ["8 4", "4 8", "2 16"])
    assert [(line["kind"], line["outcome"], line["after"]["batch"]) for line in told] == [  # type: ignore[index]
        ("memory", "changed", 4),
        ("memory", "changed", 2),
    ]
    said = capfd.readouterr().err
    assert "--batch 4 --accumulate 8 instead of --batch 8 --accumulate 4, both are 32 samples per step and rank" in said
    assert "without using up a restart" in said


def test_a_dry_run_starts_nothing_again_and_says_what_it_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, runs, told = ran(tmp_path, "dry-run", fits=2)
    assert (code, runs) == (1, ["8 4"]) and [line["outcome"] for line in told] == ["would_change"]
    said = capfd.readouterr().err
    assert "dry run: the job would restart with --batch 4 --accumulate 8 instead of --batch 8 --accumulate 4" in said


def test_a_microbatch_of_one_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, runs, told = ran(tmp_path, "on", fits=0)
    assert (code, runs[-1], told[-1]["outcome"]) == (1, "1 32", "given_up")


def test_a_smaller_microbatch_is_kept_once_it_has_made_enough_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[MemoryAdaptation] = []
    adapter = MemoryAdapter("on", HF, None, report=told.append)
    rank = Rank(tmp_path / "attempt-1", 0, 1, Clock(), monkeypatch)
    reader = HeartbeatReader(tmp_path / "attempt-1")

    def look(num_steps: int) -> Sequence[MemoryAdaptation]:
        for _ in range(num_steps):
            rank.spends("compute", 50_000_000)
            rank.steps()
        adapter.look(ranks_of(reader.read()))
        return told

    own = adapter.micro_batch
    assert own is not None
    pending = MemoryAdaptation(outcome="changed", before=own, after=own, failed_at_step=3, before_s=None)
    adapter._pending = pending
    assert look(SETTLED_STEPS - 1) == []
    (kept,) = look(1)
    assert (kept.outcome, kept.after_s) == ("kept", pytest.approx(0.05))
    assert memory_sentence(kept).endswith("fits into the GPU memory: 50.0 ms per step")
