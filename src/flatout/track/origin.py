"""Where a result comes from: the commit of the working folder, and facts about this machine.

In: nothing, or the environment of a CI system. Out: a `Commit`, and a table of facts. What cannot be
read is missing from it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from flatout.input_files import read_text
from flatout.records.tracking import Commit

_GIT_TIMEOUT_S = 10.0
# By CI system: GitHub, GitLab, Jenkins, CircleCI, Buildkite, Azure.
_COMMIT_VARIABLES = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "GIT_COMMIT",
    "CIRCLE_SHA1",
    "BUILDKITE_COMMIT",
    "BUILD_SOURCEVERSION",
)
_BRANCH_VARIABLES = (
    "GITHUB_HEAD_REF",  # of a pull request; GITHUB_REF_NAME is then `7/merge`
    "GITHUB_REF_NAME",
    "CI_COMMIT_REF_NAME",
    "BRANCH_NAME",
    "CIRCLE_BRANCH",
    "BUILDKITE_BRANCH",
    "BUILD_SOURCEBRANCHNAME",
)
_IMAGE_VARIABLES = ("CI_JOB_IMAGE", "ImageVersion")  # GitLab; GitHub's hosted runners
_CPU_MODEL = re.compile(r"^(?:model name|Processor|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def commit_here(environment: Mapping[str, str] = os.environ, *, folder: Path | None = None) -> Commit | None:
    """Return the commit of the working folder, else that of the CI system's variables, else None."""
    branch = _first(environment, _BRANCH_VARIABLES)
    shown = _git(folder, "show", "--no-patch", "--format=%H %ct", "HEAD")
    if shown is None:
        commit_id = _first(environment, _COMMIT_VARIABLES)
        return Commit(id=commit_id, branch=branch) if commit_id is not None else None
    commit_id, _, seconds = shown.partition(" ")
    name = branch or _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return Commit(
        id=commit_id,
        unix_s=float(seconds) if seconds.isdigit() else None,
        branch=None if name == "HEAD" else name,
        is_modified=bool(changed),
    )


def commit_named(name: str, *, folder: Path | None = None) -> Commit:
    """Return a commit that the user names; its time is known if the working folder's repository has it."""
    shown = _git(folder, "show", "--no-patch", "--format=%H %ct", "--end-of-options", f"{name}^{{commit}}")
    if shown is None:
        return Commit(id=name)
    commit_id, _, seconds = shown.partition(" ")
    return Commit(id=commit_id, unix_s=float(seconds) if seconds.isdigit() else None)


def facts_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return facts about this machine that can change a result."""
    facts = {"host": platform.node(), "kernel": platform.release(), "python": platform.python_version()}
    driver = _DRIVER.search(_text(Path("/proc/driver/nvidia/version")))
    if driver is not None:
        facts["driver"] = driver[1]
    image = _first(environment, _IMAGE_VARIABLES)
    if image is not None:
        facts["image"] = image
    return facts


def cpu_here() -> str:
    """Return the model of this machine's CPUs, and how many may be used."""
    model = _CPU_MODEL.search(_text(Path("/proc/cpuinfo")))
    name = " ".join(model[1].split()) if model is not None else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _text(path: Path) -> str:
    with suppress(OSError):
        return read_text(path, errors="replace")
    return ""


def _git(folder: Path | None, *arguments: str) -> str | None:
    """Return what git prints, or None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
