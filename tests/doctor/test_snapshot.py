"""Reading a machine: what hangs is given up, what fails is told, and nothing that no training job reads is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flatout.probe import limits
from flatout.probe import snapshot as probe
from flatout.probe.snapshot import read_machine
from flatout.secrets import masked_command, masked_text


def test_a_tool_that_hangs_with_children_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LIMIT_S", 0.3)
    began = time.monotonic()
    output = probe._output(("sh", "-c", "sleep 30 & sleep 30"))
    assert time.monotonic() - began < 10
    assert (output.text, output.problem) == (None, "it did not finish within 0.3 s")


def test_a_tool_that_fails_is_no_output() -> None:
    output = probe._output(("sh", "-c", "echo half; echo no device >&2; exit 3"))
    assert (output.text, output.problem) == (None, "it ended with code 3: no device")


def test_a_tool_that_is_absent_is_told() -> None:
    assert probe._output(("no-such-tool",)).problem == "there is no `no-such-tool` here"


def test_groups_of_version_1_are_read_below_the_folder_of_their_controllers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Slurm makes them: the limit is that of the job, not of the mount."""
    group = tmp_path / "cpu,cpuacct" / "slurm" / "job_7"
    group.mkdir(parents=True)
    (tmp_path / "self").write_text("5:cpu,cpuacct:/slurm/job_7\n0::/user.slice\n")
    monkeypatch.setattr(limits, "_MOUNT", tmp_path)
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path: read(tmp_path / "self" if str(path) == "/proc/self/cgroup" else path)
    )
    found = probe._control_groups()
    assert {str(group), str(group.parent), str(group.parent.parent)} <= set(found)


def test_only_variables_that_training_reads_are_kept() -> None:
    snapshot = read_machine({"NCCL_DEBUG": "INFO", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x"})
    assert snapshot.environment == {"NCCL_DEBUG": "INFO"}
    assert "/proc/cpuinfo" in snapshot.files


def test_bundles_and_commands_know_the_same_secrets() -> None:
    words = ("--signing-key=abc", "hf_abcdefghijklmnop", "xoxb-123456789012", "https://me:abc@host/x")
    shown = masked_command(words)
    assert not any("abc" in word or "123456789012" in word for word in shown)
    text = masked_text("\n".join(words[1:]) + "\nAuthorization: Bearer abc\npad_token=7")
    assert "abc" not in text and "123456789012" not in text and "pad_token=7" in text
