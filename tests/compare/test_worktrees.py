"""Worktrees of a real repository: what they hold, and that nothing of the user's changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flatout.compare.worktrees import (
    add_worktree,
    commit_of,
    remove_worktree,
    repository_of,
    tracked_words,
    untracked_words,
)
from flatout.errors import FlatoutError


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    words = ["git", *identity, *arguments]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of `job/train.py`: `main` has the second, the tag `first` the first; and a change that is neither."""
    top = tmp_path / "repository"
    (top / "job").mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    for number in ("1", "2"):
        (top / "job" / "train.py").write_text(number)
        git(top, "add", ".")
        git(top, "commit", "-qm", number)
        if number == "1":
            git(top, "tag", "first")
    (top / "job" / "train.py").write_text("3")
    (top / "job" / "data.bin").write_text("not tracked")
    return top


def test_a_worktree_has_the_files_of_its_commit_and_is_removed(repository: Path, tmp_path: Path) -> None:
    found = repository_of(repository / "job")
    assert (found.top, found.prefix, found.num_changed) == (str(repository), "job", 1)
    status = git(repository, "status", "--porcelain")
    tree = tmp_path / "out" / "trees" / "a"
    folder = add_worktree(found, commit_of(found, "first", "--a-ref"), tree)
    assert folder == tree / "job"
    assert (folder / "train.py").read_text() == "1"
    assert not (folder / "data.bin").exists()
    (folder / "written by a trial").write_text("")
    remove_worktree(found, tree)
    assert not tree.exists()
    assert git(repository, "status", "--porcelain") == status
    assert git(repository, "worktree", "list").count("\n") == 1
    assert (repository / "job" / "train.py").read_text() == "3"


def test_the_worktree_of_a_killed_comparison_is_replaced(repository: Path, tmp_path: Path) -> None:
    found = repository_of(repository)
    tree = tmp_path / "trees" / "a"
    add_worktree(found, commit_of(found, "first", "--a-ref"), tree)
    add_worktree(found, commit_of(found, "main", "--a-ref"), tree)
    assert (tree / "job" / "train.py").read_text() == "2"
    remove_worktree(found, tree)
    remove_worktree(found, tree)  # nothing is left, and nothing happens


def test_hooks_of_the_repository_do_not_run(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    found = repository_of(repository)
    add_worktree(found, commit_of(found, "main", "--a-ref"), tmp_path / "trees" / "a")
    remove_worktree(found, tmp_path / "trees" / "a")
    assert not (tmp_path / "hook-ran").exists()


@pytest.mark.parametrize("ref", ["nowhere", "", "--help", "first:job/train.py", "a b", "HEAD~9"])
def test_an_unknown_ref_is_one_line(repository: Path, ref: str) -> None:
    found = repository_of(repository)
    with pytest.raises(FlatoutError) as raised:
        commit_of(found, ref, "--b-ref")
    assert str(raised.value) == (
        f"`--b-ref` must be a commit, branch or tag of {repository}, but git does not find `{ref}`"
    )


def test_a_folder_outside_of_any_repository_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FlatoutError) as raised:
        repository_of(tmp_path)
    assert str(raised.value) == f"{tmp_path} is not in a git repository, so it has no refs to compare"


def test_a_commit_without_the_working_folder_is_one_line(repository: Path, tmp_path: Path) -> None:
    (repository / "new").mkdir()
    found = repository_of(repository / "new")
    with pytest.raises(FlatoutError, match="`main` has no folder `new`, in which the command would run"):
        add_worktree(found, commit_of(found, "main", "--a-ref"), tmp_path / "trees" / "a")
    assert git(repository, "worktree", "list").count("\n") == 1


def test_words_that_a_worktree_would_not_change(repository: Path, tmp_path: Path) -> None:
    """A script by its absolute path would be that of the working folder; data that git does not have are missed."""
    found = repository_of(repository / "job")
    script = str(repository / "job" / "train.py")
    untracked = str(repository / "job" / "data.bin")
    assert tracked_words(found, ("python", script, untracked, "/etc/hostname")) == [script]
    folder = add_worktree(found, commit_of(found, "main", "--a-ref"), tmp_path / "trees" / "a")
    words = ("python", "train.py", "--data=data.bin", "--out", "absent")
    assert untracked_words(repository / "job", folder, words) == ["data.bin"]
    remove_worktree(found, tmp_path / "trees" / "a")
