"""Merge changes into one set that can be applied, or say in one line why they are incompatible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from flatout.change.catalogue import problems, set_by_script
from flatout.change.forbidden import forbidden_settings
from flatout.errors import UsageError
from flatout.records.change import Change, ChangeSet, JobFacts, Patch, Scalar


def combine(changes: Sequence[Change], facts: JobFacts | None = None) -> ChangeSet:
    """Merge the changes. Raises UsageError with one line if two contradict each other or one lacks what it requires.

    `facts` say what the script sets itself: that need not be among the changes.
    """
    conflict = next(conflicts(changes, facts or JobFacts()), None)
    if conflict is not None:
        raise UsageError(conflict, hint="remove one of the changes")
    return ChangeSet(
        changes=tuple(changes),
        environment=_merged_environment(changes),
        launch=_merged_launch(changes),
        patches=_merged_patches(changes),
        arguments=tuple(change.argument for change in changes if change.argument is not None),
    )


def _merged_environment(changes: Sequence[Change]) -> dict[str, str]:
    return {name: value for change in changes for name, value in change.environment.items()}


def _merged_launch(changes: Sequence[Change]) -> dict[str, tuple[str, ...]]:
    launch: dict[str, tuple[str, ...]] = {}
    for change in changes:
        for launcher, arguments in change.launch.items():
            launch[launcher] = (*launch.get(launcher, ()), *arguments)
    return launch


def _merged_patches(changes: Sequence[Change]) -> tuple[Patch, ...]:
    parameters: dict[str, dict[str, Scalar]] = {}
    for change in changes:
        if change.patch is not None:
            parameters.setdefault(change.patch.name, {}).update(change.patch.parameters)
    return tuple(Patch(name=name, parameters=values) for name, values in parameters.items())


def conflicts(changes: Sequence[Change], facts: JobFacts) -> Iterator[str]:
    """Yield one line per reason why the changes cannot be applied together."""
    for change in changes:
        yield from problems(change)
    for first, second in combinations(changes, 2):
        yield from _between(first, second)
    available = {change.knob.name for change in changes} | set_by_script(facts)
    for change in changes:
        yield from (f"{change.name} requires {name}" for name in change.knob.requires if name not in available)
    yield from _forbidden_together(changes, facts)


def _forbidden_together(changes: Sequence[Change], facts: JobFacts) -> Iterator[str]:
    """Yield the forbidden settings that result only from the changes together, or with the job's own variables."""
    set_by_changes = _merged_environment(changes)
    reported = {line for change in changes for line in forbidden_settings(change.environment)}
    for line in forbidden_settings(facts.environment | set_by_changes):
        # The user's own variables are not checked.
        if line not in reported and line.partition("=")[0] in set_by_changes:
            yield line


def _between(first: Change, second: Change) -> Iterator[str]:
    """Yield why two changes cannot be applied together."""
    both = f"{first.name} and {second.name}"
    if first.knob.name == second.knob.name:
        yield f"{both} set the same knob"
        return
    if second.knob.name in first.knob.excludes or first.knob.name in second.knob.excludes:
        yield f"{both} exclude each other"
        return
    for name in _unequal(first.environment, second.environment):
        yield f"{both} both set {name}, to different values"
    if first.patch is not None and second.patch is not None and first.patch.name == second.patch.name:
        for name in _unequal(first.patch.parameters, second.patch.parameters):
            yield f"{both} both set {name} of the patch `{first.patch.name}`"
    for flag in sorted(_flags(first) & _flags(second)):
        yield f"{both} both set the argument {flag}"


def _unequal(first: Mapping[str, Scalar], second: Mapping[str, Scalar]) -> list[str]:
    """Return the names that have a value in both, but not the same."""
    return [name for name in sorted(first.keys() & second.keys()) if first[name] != second[name]]


def _flags(change: Change) -> set[str]:
    """Return the names of the script's arguments that the change sets: `--batch-size` of `--batch-size=8`."""
    if change.argument is None:
        return set()
    return {words[0].partition("=")[0] for words in change.argument.words}
