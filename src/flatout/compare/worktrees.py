"""Check out commits of the user's repository into worktrees of the comparison, and remove them at its end.

In: a ref such as `main`, and the working folder. Out: a folder with the files of that commit. The user's own files,
branches, index and stashes are not touched; hooks of the repository are not run. Files that git does not track are not
in a worktree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError

FOLDER = "trees"  # in the folder of the comparison
_TIMEOUT_S = 600.0
_SHORT = 10  # characters of a commit's name


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The repository that the working folder is in."""

    top: str
    prefix: str  # the working folder within it; "" for its top
    num_changed: int  # tracked files with changes that are not committed


class WorktreeCommit(msgspec.Struct, frozen=True, kw_only=True):
    ref: str
    name: str  # the complete hash

    @property
    def short(self) -> str:
        return self.name[:_SHORT]


def repository_of(folder: Path) -> Repository:
    """Return the repository of a folder. Raises InputError if it is in none, or if there is no git."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top.returncode:
        raise InputError(
            f"{folder} is not in a git repository, so it has no refs to compare",
            hint="compare two commands instead: --a 'CMD' --b 'CMD'",
        )
    prefix = _git(folder, "rev-parse", "--show-prefix").stdout.strip().rstrip("/")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no").stdout.splitlines()
    return Repository(top=os.path.realpath(top.stdout.strip()), prefix=prefix, num_changed=len(changed))


def commit_of(repository: Repository, ref: str, option: str) -> WorktreeCommit:
    """Return the commit that a ref names. Raises InputError if there is no such ref."""
    done = _git(Path(repository.top), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    name = done.stdout.strip()
    if done.returncode or not name or not ref:
        raise InputError(
            f"`{option}` must be a commit, branch or tag of {repository.top}, but git does not find `{ref}`",
            hint="git branch --all shows the branches; a shallow clone needs git fetch first",
        )
    return WorktreeCommit(ref=ref, name=name)


def add_worktree(repository: Repository, commit: WorktreeCommit, path: Path) -> Path:
    """Check out the commit at `path`, and return the working folder in it. Raises InputError or OutputError."""
    remove_worktree(repository, path)  # of an earlier comparison that was killed
    path.parent.mkdir(parents=True, exist_ok=True)
    done = _git(Path(repository.top), "worktree", "add", "--detach", "--quiet", str(path), commit.name)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or ["git worktree add failed"])[-1]
        raise OutputError(f"the files of {commit.ref} cannot be checked out: {problem}", hint="pass another --out")
    folder = path / repository.prefix
    if not folder.is_dir():
        remove_worktree(repository, path)
        raise InputError(
            f"`{commit.ref}` has no folder `{repository.prefix}`, in which the command would run",
            hint="start from the top of the repository",
        )
    return folder


def remove_worktree(repository: Repository, path: Path) -> None:
    """Remove a worktree and what the trials left in it; nothing if there is none."""
    if path.exists():
        _git(Path(repository.top), "worktree", "remove", "--force", "--force", str(path))
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.parent.rmdir()
    _git(Path(repository.top), "worktree", "prune")


def tracked_words(repository: Repository, command: Sequence[str]) -> list[str]:
    """Return the words of a command that name a tracked file of the working folder by its absolute path."""
    within = [word for word in command if os.path.isabs(word) and os.path.isfile(word)]
    within = [word for word in within if os.path.realpath(word).startswith(repository.top + os.sep)]
    return [word for word in within if not _git(Path(repository.top), "ls-files", "--error-unmatch", word).returncode]


def untracked_words(folder: Path, tree: Path, command: Sequence[str]) -> list[str]:
    """Return the words of a command that name something in the working folder that the worktree does not have."""
    names = [word.rpartition("=")[2] for word in command]
    is_relative = [name for name in names if name and not os.path.isabs(name) and not name.startswith("-")]
    return [name for name in is_relative if (folder / name).exists() and not (tree / name).exists()]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=folder,
            env={**environment, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        hint = "install it, or compare two commands: --a 'CMD' --b 'CMD'"
        raise InputError("git was not found", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"git {arguments[0]} took more than {_TIMEOUT_S:.0f} s") from error
