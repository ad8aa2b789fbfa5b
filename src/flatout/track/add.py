"""Add results to a history: each gets a job, a class of machine, a commit and an environment.

In: files of results and what the user says about them. Out: the lines that were added. Two results are compared only
if their job and their class of machine are equal, so a result without one of them is refused.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.records.tracking import Commit, Measure, TrackedResult
from flatout.secrets import masked_environment, masked_text
from flatout.track.facts import ResultFacts
from flatout.track.history_file import append_results
from flatout.track.origin import commit_here, commit_named, cpu_here, facts_here
from flatout.track.result_file import ResultFile, read_result

_NAME = re.compile(r"[^\s=][^=]*")


class AddRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about the results."""

    job: str | None = None
    machine: str | None = None
    commit: str | None = None
    settings: tuple[str, ...] = ()  # NAME=VALUE
    is_elsewhere: bool = False  # measured on another machine than this one


def add_results(
    history: Path, paths: Sequence[Path], request: AddRequest, read: Callable[[Path], ResultFile] = read_result
) -> tuple[list[TrackedResult], int]:
    """Add results, all or none. Return those that were added, and how many the history had already."""
    environment = _settings(request.settings)
    results = [tracked_result(path, read(path), request, environment) for path in paths]
    added = append_results(history, results)
    return added, len(results) - len(added)


def tracked_result(
    path: Path, result: ResultFile, request: AddRequest, environment: Mapping[str, str]
) -> TrackedResult:
    """Return the line of a result. Raise UsageError if its job or its machine is unknown."""
    facts = result.facts
    job = request.job or facts.job
    if job is None:
        raise UsageError(f"`{path}` does not say which job was measured", hint="name it with --job")
    local = {} if request.is_elsewhere or not _is_from_here(facts) else facts_here()
    return TrackedResult(
        job=masked_text(job),
        machine=masked_text(request.machine or _machine_class(path, facts, request)),
        source=result.schema,
        measures=_distinct(facts.measures),
        commit=_masked_commit(_commit(facts, request)),
        environment=masked_environment({**local, **facts.environment, **environment}),
        measured_unix_s=_unix_s(facts.date),
        digest=result.digest,
    )


def _distinct(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    return tuple({measure.name: measure for measure in measures}.values())


def _is_from_here(facts: ResultFacts) -> bool:
    """Return whether this machine measured the result, as far as the result says."""
    return facts.host is None or facts.host == facts_here()["host"]


def _machine_class(path: Path, facts: ResultFacts, request: AddRequest) -> str:
    """Return the class: devices, ranks and hosts. The host's name is a fact of the environment, not of the class."""
    device = facts.device
    if device is None or device.lower() == "cpu":
        if request.is_elsewhere or not _is_from_here(facts):
            raise UsageError(
                f"`{path}` does not say which CPUs measured it, and it was not measured on this machine",
                hint="name the class of machine with --machine",
            )
        device = cpu_here()
    counts = [
        (facts.num_devices, "device"),
        (facts.num_ranks, "rank"),
        (facts.num_hosts, "host"),
    ]
    words = [f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts if number is not None]
    return ", ".join([device, *words])


def _commit(facts: ResultFacts, request: AddRequest) -> Commit | None:
    if request.commit is not None:
        return commit_named(request.commit)
    if facts.commit is not None:
        return commit_named(facts.commit)
    return commit_here()


def _masked_commit(commit: Commit | None) -> Commit | None:
    """Mask what a user or a CI system named the commit and its branch."""
    if commit is None:
        return None
    branch = masked_text(commit.branch) if commit.branch is not None else None
    return msgspec.structs.replace(commit, id=masked_text(commit.id), branch=branch)


def _settings(settings: Sequence[str]) -> dict[str, str]:
    """Return facts that the user gives as NAME=VALUE."""
    facts = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(f"`--env` must be NAME=VALUE, but is `{setting}`", hint="for example --env image=train:7")
        facts[name.strip()] = value
    return facts


def _unix_s(date: str | None) -> float:
    """Return the time of an ISO date, or now."""
    if date is None:
        return round(time.time(), 3)
    try:
        return round(datetime.fromisoformat(date).timestamp(), 3)
    except (ValueError, OverflowError, OSError):
        return round(time.time(), 3)
