"""Changes -> one set that can be applied, or one line that says why they do not fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from flatout.change.catalogue import already_turned, problems
from flatout.change.fence import fenced
from flatout.errors import UsageError
from flatout.records.change import Change, ChangeSet, JobFacts, Patch, Scalar


def combine(changes: Sequence[Change], facts: JobFacts | None = None) -> ChangeSet:
    """The changes merged. UsageError with one line where two contradict each other, or one lacks what it requires.

    `facts` say what the script does itself: that need not be among the changes.
    """
    facts = facts if facts is not None else JobFacts()
    first = next(conflicts(changes, facts), None)
    if first is not None:
        raise UsageError(first, hint="leave one of them out")
    parameters: dict[str, dict[str, Scalar]] = {}
    launch: dict[str, tuple[str, ...]] = {}
    for change in changes:
        if change.patch is not None:
            parameters.setdefault(change.patch.name, {}).update(change.patch.parameters)
        for launcher, words in change.launch.items():
            launch[launcher] = (*launch.get(launcher, ()), *words)
    return ChangeSet(
        changes=tuple(changes),
        environment={name: value for change in changes for name, value in change.environment.items()},
        launch=launch,
        patches=tuple(Patch(name=name, parameters=values) for name, values in parameters.items()),
        arguments=tuple(change.argument for change in changes if change.argument is not None),
    )


def conflicts(changes: Sequence[Change], facts: JobFacts) -> Iterator[str]:
    """One line for each reason why the changes cannot be applied together."""
    for change in changes:
        yield from problems(change)
    for one, other in combinations(changes, 2):
        yield from _between(one, other)
    turned = {change.knob.name for change in changes} | already_turned(facts)
    for change in changes:
        for name in change.knob.requires:
            if name not in turned:
                yield f"{change.name} requires {name}"
    together = {name: value for change in changes for name, value in change.environment.items()}
    alone = {line for change in changes for line in fenced(change.environment)}
    yield from (line for line in fenced(facts.environment | together) if line not in alone and _names(line, together))


def _between(one: Change, other: Change) -> Iterator[str]:
    if one.knob.name == other.knob.name:
        yield f"{one.name} and {other.name} turn the same knob"
        return
    if other.knob.name in one.knob.excludes or one.knob.name in other.knob.excludes:
        yield f"{one.name} and {other.name} exclude each other"
        return
    for name in sorted(one.environment.keys() & other.environment.keys()):
        if one.environment[name] != other.environment[name]:
            yield f"{one.name} and {other.name} both set {name}, to different values"
    if one.patch is not None and other.patch is not None and one.patch.name == other.patch.name:
        mine, theirs = one.patch.parameters, other.patch.parameters
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                yield f"{one.name} and {other.name} both set {name} of the patch `{one.patch.name}`"
    if one.argument is not None and other.argument is not None:
        for flag in sorted(_flags(one) & _flags(other)):
            yield f"{one.name} and {other.name} both set the argument {flag}"


def _flags(change: Change) -> set[str]:
    """What an argument is called: `--batch-size` of `--batch-size=8`."""
    return {word[0].partition("=")[0] for word in change.argument.words} if change.argument is not None else set()


def _names(line: str, environment: dict[str, str]) -> bool:
    """Whether a line of `fenced` is about a variable that the changes set; the user's own are the user's."""
    return line.partition("=")[0] in environment
