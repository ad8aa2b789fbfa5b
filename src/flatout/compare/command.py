"""Run `flatout compare` from its options to its result: check out the commits, open the folder, compare, write.

The folder of a comparison has a folder with a journal for each arm, so that the same command resumes an interrupted
comparison, `trees/` with the worktrees while it runs, and `comparison.json` at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.checkpoint.lock import NAME as LOCK
from flatout.compare.arm_runner import JOURNAL, arm_runner
from flatout.compare.arms import ArmRequest
from flatout.compare.loop import compare
from flatout.compare.options import CompareOptions
from flatout.compare.result import comparison
from flatout.compare.runner import ArmRunners
from flatout.compare.worktrees import (
    FOLDER,
    Repository,
    WorktreeCommit,
    add_worktree,
    commit_of,
    remove_worktree,
    repository_of,
    tracked_words,
    untracked_words,
)
from flatout.errors import OutputError, UsageError
from flatout.launch import StandardInput
from flatout.launch.abandoned import abandoned_jobs
from flatout.launch.guard import guarded
from flatout.records.comparison import Arm, ArmName, Comparison
from flatout.report.comparison_json import comparison_json
from flatout.report.files import write_new
from flatout.report.separation import separation_sentence
from flatout.secrets import masked_command, masked_text
from flatout.trial.journal import is_journal
from flatout.tune.files import RESULTS, is_of_tuning
from flatout.tune.folder_lock import lock_folder
from flatout.tune.runner import Runner, Say
from flatout.tune.signals import EndedBySignal, signals_raised

RESULT = "comparison.json"
_ARMS = ("a", "b")
_OURS = (*_ARMS, FOLDER, RESULT, LOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCommand:
    """Two arms to compare, and the folder for their trials and the result."""

    a: ArmRequest
    b: ArmRequest
    folder: Path
    options: CompareOptions
    warmup: int | None = None
    force: bool = False  # replaces an earlier comparison in the folder
    standard_input: StandardInput | None = None  # that of the trials; None: ours

    def run(self, say: Say) -> tuple[Comparison, int | None]:
        """Compare, resuming any comparison of the same arms in the folder.

        Also return the exit code of an interruption; None if there was none.
        """
        for abandoned in abandoned_jobs():
            say(abandoned.describe())
        folder = self.folder.absolute()
        checkouts = [_checkout_of(request) for request in (self.a, self.b)]
        notes = _notes(self.a, self.b, checkouts)
        for note in notes:
            say(note)
        _claim(folder, force=self.force)
        mark = uuid.uuid4().hex
        tops = dict.fromkeys(checkout.repository.top for checkout in checkouts if checkout is not None)
        clean_up = (sys.executable, "-m", "flatout.compare.clean_up", str(folder), *tops)
        with signals_raised(), guarded(mark, clean_up), ExitStack() as trees:
            standard_input = self.standard_input or StandardInput()
            if standard_input.missing is not None:
                say(f"trials have no standard input: {standard_input.missing}")
            runners: dict[ArmName, Runner] = {}
            arms = []
            for request, checkout in zip((self.a, self.b), checkouts, strict=True):
                tree = trees.enter_context(_checked_out(checkout, folder / FOLDER / request.name.lower()))
                place = _Place(checkout=checkout, tree=tree)
                if place.tree is not None:
                    notes += [note for note in _untracked_notes(request, place.tree) if note not in notes]
                runners[request.name] = self._runner(request, place, folder, standard_input, mark, say)
                arms.append(_arm(request, checkout))
            both = ArmRunners(runners)
            say(separation_sentence(both.separation))
            compared = compare(both, self.options, say)
            result = comparison(compared, both, arms, self.options, notes)
        if compared.interruption is None:
            return result, None
        say(f"interrupted; run the same command with --out {self.folder} to resume")
        return result, _exit_code(compared.interruption)

    def _runner(
        self, request: ArmRequest, place: _Place, folder: Path, standard_input: StandardInput, mark: str, say: Say
    ) -> Runner:
        """Return the runner of one arm, with its journal, environment and working folder."""
        return arm_runner(
            request,
            folder / request.name.lower(),
            budget_s=self.options.budget_s,
            standard_input=standard_input,
            mark=mark,
            say=say,
            warmup=self.warmup,
            commit=place.checkout.commit.name if place.checkout is not None else None,
            tree=place.tree,
            moved=place.moved,
        )

    def write(self, result: Comparison, typed_command: Sequence[str]) -> str:
        """Write the result to the folder, and return the line to print. Raises OutputError."""
        path = self.folder / RESULT
        write_new(path, comparison_json(result, typed_command), force=True)
        return f"wrote {path}"


def _exit_code(interruption: EndedBySignal | KeyboardInterrupt) -> int:
    return 128 + interruption.number if isinstance(interruption, EndedBySignal) else 130


class _Checkout(msgspec.Struct, frozen=True, kw_only=True):
    repository: Repository
    commit: WorktreeCommit


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an arm runs. `tree` is its working folder in the worktree; None: our own working folder."""

    checkout: _Checkout | None
    tree: Path | None

    @property
    def moved(self) -> Mapping[str, str]:
        """Return the worktree of the repository."""
        if self.checkout is None or self.tree is None:
            return {}
        prefix = self.checkout.repository.prefix
        tree = str(self.tree).removesuffix(os.sep + prefix) if prefix else str(self.tree)
        return {self.checkout.repository.top: tree}


def _checkout_of(request: ArmRequest) -> _Checkout | None:
    """Return the commit of an arm. Raises InputError or UsageError if it cannot be run."""
    if request.ref is None:
        return None
    option = f"--{request.name.lower()}-ref"
    repository = repository_of(Path.cwd())
    commit = commit_of(repository, request.ref, option)
    absolute = tracked_words(repository, request.command)
    if absolute:
        raise UsageError(
            f"the command names {absolute[0]} of the working folder, so `{option}` would have no effect",
            hint=f"name it by a relative path: {os.path.relpath(absolute[0])}",
        )
    return _Checkout(repository=repository, commit=commit)


@contextmanager
def _checked_out(checkout: _Checkout | None, path: Path) -> Iterator[Path | None]:
    """Yield the working folder in a worktree of the commit, which is removed at the end; None without a commit."""
    if checkout is None:
        yield None
        return
    try:
        yield add_worktree(checkout.repository, checkout.commit, path)
    finally:
        remove_worktree(checkout.repository, path)


def _notes(a: ArmRequest, b: ArmRequest, checkouts: Sequence[_Checkout | None]) -> list[str]:
    """Return what the user should know before the first trial: equal arms, and changes that are not committed."""
    notes = [_same_arms_note(a, b, checkouts), _uncommitted_note(a, b, checkouts)]
    return [note for note in notes if note is not None]


def _same_arms_note(a: ArmRequest, b: ArmRequest, checkouts: Sequence[_Checkout | None]) -> str | None:
    is_same_job = (a.command, a.variables, a.python) == (b.command, b.variables, b.python)
    commits = [checkout.commit.name if checkout is not None else None for checkout in checkouts]
    if not is_same_job or commits[0] != commits[1]:
        return None
    of_commit = f" of commit {checkouts[0].commit.short}" if checkouts[0] is not None else ""
    return f"A and B are the same command{of_commit}: only noise can make them differ"


def _uncommitted_note(a: ArmRequest, b: ArmRequest, checkouts: Sequence[_Checkout | None]) -> str | None:
    """Say which arm has the user's changes, if there are any and an arm runs a commit."""
    repository = next((checkout.repository for checkout in checkouts if checkout is not None), None)
    if repository is None or not repository.num_changed:
        return None
    files = "1 file has" if repository.num_changed == 1 else f"{repository.num_changed} files have"
    with_commit = [f"{request.name} ({request.ref})" for request in (a, b) if request.ref is not None]
    without = [request.name for request in (a, b) if request.ref is None]
    where = f"they are in {without[0]} only" if without else f"they are not in {' nor in '.join(with_commit)}"
    return f"{files} changes that are not committed: {where}"


def _untracked_notes(request: ArmRequest, tree: Path) -> list[str]:
    names = untracked_words(Path.cwd(), tree, request.command)
    return [
        f"{name} is not in the commit of {request.name}, so its command does not find it there: if it is data, name"
        " it by its absolute path"
        for name in names
    ]


def _arm(request: ArmRequest, checkout: _Checkout | None) -> Arm:
    variables = [f"{name}={value}" for name, value in request.variables.items()]
    return Arm(
        name=request.name,
        command=tuple(masked_command([*variables, *request.command])),
        ref=masked_text(request.ref) if request.ref is not None else None,
        commit=checkout.commit.name if checkout is not None else None,
        python=str(request.python) if request.python is not None else None,
    )


def _claim(folder: Path, *, force: bool) -> None:
    """Create and lock the folder, and with `force` remove the comparison there. Raises OutputError."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="pass another --out")
    is_ours = any(is_journal(folder / arm / JOURNAL) for arm in _ARMS)
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    others = sorted(names.difference(_OURS))
    if others or (names - {LOCK} and not is_ours):
        raise OutputError(f"{folder} already has other files", hint="pass another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"{folder} cannot be written to: {reason}", hint="pass another --out") from error
    _check_arms(folder)
    lock_folder(folder, "comparison")
    if force:
        for name in _ARMS:
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / RESULT).unlink(missing_ok=True)


def _check_arms(folder: Path) -> None:
    """Raise OutputError if a folder that would be an arm's is not one: it is the user's, or that of a tuning."""
    for arm in (folder / name for name in _ARMS):
        if not os.path.lexists(arm):
            continue
        if arm.is_symlink() or not arm.is_dir():
            raise OutputError(f"{arm} is not the folder of an arm", hint="pass another --out")
        others = [entry.name for entry in arm.iterdir() if not is_of_tuning(entry) or entry.name in RESULTS]
        if others:
            raise OutputError(f"{arm} already has other files, such as `{min(others)}`", hint="pass another --out")
