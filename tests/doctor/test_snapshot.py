"""Reading a machine: what hangs is given up, what fails is told, and nothing that no training job reads is kept."""

from __future__ import annotations

import time

import pytest

from flatout.probe import snapshot as probe
from flatout.probe.snapshot import read_machine


def test_a_tool_that_hangs_with_children_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LIMIT_S", 0.3)
    began = time.monotonic()
    output = probe._output(("sh", "-c", "sleep 30 & sleep 30"))
    assert time.monotonic() - began < 10
    assert (output.text, output.problem) == (None, "it did not end within 0.3 s")


def test_a_tool_that_fails_is_no_output() -> None:
    output = probe._output(("sh", "-c", "echo half; echo no device >&2; exit 3"))
    assert (output.text, output.problem) == (None, "it ended with code 3: no device")


def test_a_tool_that_is_absent_is_told() -> None:
    assert probe._output(("no-such-tool",)).problem == "there is no `no-such-tool` here"


def test_only_variables_that_training_reads_are_kept() -> None:
    snapshot = read_machine({"NCCL_DEBUG": "INFO", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x"})
    assert snapshot.environment == {"NCCL_DEBUG": "INFO"}
    assert "/proc/cpuinfo" in snapshot.files
