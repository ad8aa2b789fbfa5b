"""Which folders are overlaid for a command, and why there is no overlay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from flatout.records.tuning import Separation
from flatout.report.separation import separation_sentence
from flatout.trial import separation as module
from flatout.trial.changes_on_disk import changed_files, times_of_change
from flatout.trial.separation import choose_separation, named_folders, why_unfit


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    (folder / "out").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def allow(monkeypatch: pytest.MonkeyPatch, *refused: Separation) -> list[Separation]:
    """Let the kernel allow all but the first overlays that are tried; return what is tried."""
    tried: list[Separation] = []

    def refusal(separation: Separation, out: Path, environment: object) -> str:
        tried.append(separation)
        return "the kernel refuses it" if len(tried) <= len(refused) or separation in refused else ""

    monkeypatch.setattr(module, "_refusal", refusal)
    return tried


def test_an_overlay_is_chosen_if_the_kernel_allows_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch)
    chosen = choose_separation(["python", "train.py"], work / "out")
    assert (chosen.method, chosen.folders) == ("overlay", (str(work),))


def test_hooks_are_chosen_with_the_reason_if_the_kernel_refuses(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_refusal", lambda *_: "the kernel refuses user namespaces: operation not permitted")
    chosen = choose_separation(["python", "train.py"], work / "out")
    assert chosen.method == "hooks"
    assert chosen.reason == "the kernel refuses user namespaces: operation not permitted"
    sentence = separation_sentence(chosen)
    assert "kept apart by hooks (no overlay: the kernel refuses user namespaces" in sentence
    assert "not covered are other programs, compiled libraries" in sentence


@pytest.mark.parametrize("launcher", ["srun", "/usr/bin/ssh", "docker", "sudo", "apptainer"])
def test_a_command_whose_processes_run_elsewhere_has_no_overlay(
    work: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    tried = allow(monkeypatch)
    chosen = choose_separation([launcher, "python", "train.py"], work / "out")
    assert (chosen.method, tried) == ("hooks", [])
    assert chosen.reason == f"processes that {Path(launcher).name} starts are outside any overlay"


@pytest.mark.parametrize(("value", "method"), [("0", "hooks"), ("1", "overlay"), ("", "overlay")])
def test_a_user_can_ask_for_hooks(work: Path, monkeypatch: pytest.MonkeyPatch, value: str, method: str) -> None:
    allow(monkeypatch)
    chosen = choose_separation(["python", "train.py"], work / "out", {"FLATOUT_OVERLAY": value})
    assert (chosen.method, chosen.reason) == (method, "FLATOUT_OVERLAY is 0" if method == "hooks" else "")


def test_the_folders_that_the_command_names_are_overlaid_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch)
    other, third = work.parent / "scratch", work.parent / "data"
    other.mkdir()
    third.mkdir()
    (third / "train.bin").touch()
    command = ["python", "train.py", f"--out={other}/new/run", "../data", f"{third}/train.bin", "hydra.run.dir=./x"]
    assert named_folders(command, str(work)) == [f"{other}/new/run", str(third)]
    assert choose_separation(command, work / "out").folders == (str(work), str(other), str(third))


def test_a_named_folder_that_cannot_be_overlaid_is_left_out(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = work.parent / "scratch"
    other.mkdir()
    refused = [
        Separation(method="overlay", folders=(str(work), str(other)), needs_user=needs_user)
        for needs_user in ((False, True) if os.geteuid() == 0 else (True,))
    ]
    allow(monkeypatch, *refused)
    assert choose_separation(["python", "a.py", str(other)], work / "out").folders == (str(work),)


@pytest.mark.parametrize("folder", ["/", "/usr/lib", "/etc", tempfile.gettempdir(), "/home"])
def test_folders_of_the_machine_are_not_overlaid(folder: str) -> None:
    assert why_unfit(folder) == f"{folder} belongs to the machine: all its processes share it"


def test_a_folder_with_another_file_system_in_it_is_not_overlaid(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay shows the folder below the mount, which is empty."""
    assert why_unfit(str(work)) is None
    monkeypatch.setattr(module, "_mounts", lambda: ["/", f"{work}x", f"{work}/data"])
    assert why_unfit(str(work)) == f"{work}/data is another file system within {work}"


def test_a_folder_of_another_group_needs_more_than_a_user_namespace(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(work).st_uid)
    monkeypatch.setattr(os, "getegid", lambda: os.stat(work).st_gid)
    assert why_unfit(str(work)) is None
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert "belongs to another user or group" in (why_unfit(str(work)) or "")


def test_the_overlay_is_tried_and_leaves_nothing(work: Path) -> None:
    chosen = choose_separation(["python", "train.py"], work / "out")
    if chosen.method == "hooks":
        assert "the kernel refuses" in chosen.reason  # as in a container
    assert [path.name for path in work.iterdir()] == ["out"] and not list((work / "out").iterdir())


def test_changed_files_are_found_but_not_in_caches_and_in_the_folder_of_the_tuning(work: Path) -> None:
    for name in ("kept.txt", "changed.txt", "gone.txt"):
        (work / name).write_text("x")
    but = {str(work / "out")}
    before = times_of_change([str(work)], but)
    (work / "changed.txt").write_text("y")
    (work / "gone.txt").unlink()
    (work / "__pycache__").mkdir()
    for name in ("new.txt", "__pycache__/new.pyc", "out/new.txt"):
        (work / name).write_text("x")
    after = times_of_change([str(work)], but)
    assert before is not None and after is not None
    assert changed_files(before, after) == {f"{work}/changed.txt", f"{work}/new.txt"}


def test_folders_that_take_too_long_are_not_read(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.0, 102.1])
    monkeypatch.setattr("flatout.trial.changes_on_disk.time.monotonic", lambda: next(times))
    assert times_of_change([str(work)]) is None  # the second of its two folders is after the limit


@pytest.mark.parametrize(("most", "is_read"), [(3, True), (2, False)])
def test_folders_with_too_many_files_are_not_read(
    work: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_read: bool
) -> None:
    monkeypatch.setattr("flatout.trial.changes_on_disk.MAX_FILES", most)
    for number in range(3):
        (work / str(number)).touch()
    assert (times_of_change([str(work)]) is not None) == is_read
