"""All knobs and changes of all families, and the reasons that forbid a change: needs, range, forbidden settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType

from flatout.change import (
    batches,
    checkpoint,
    dataloader,
    ddp,
    fsdp2,
    garbage_collection,
    inference,
    kernels,
    memory,
    nccl,
    nccl_measured,
    onnx,
    optimizer,
    precision,
    process,
)
from flatout.change.forbidden import forbidden_settings
from flatout.change.patches import patch_problem
from flatout.records.change import Change, JobFacts, Knob, Need, Scalar

# A family is a module with FAMILY, KNOBS and `changes(facts)`, which gives the values that suit the facts, best first.
# If the bounds of two changes are equal, the one further up is tried first.
FAMILIES: tuple[ModuleType, ...] = (
    nccl_measured,
    nccl,
    dataloader,
    batches,
    ddp,
    fsdp2,
    checkpoint,
    optimizer,
    memory,
    process,
    garbage_collection,
    inference,
    onnx,
    kernels,
    precision,
)
KNOBS: tuple[Knob, ...] = tuple(knob for family in FAMILIES for knob in family.KNOBS)


def all_changes(facts: JobFacts) -> Iterator[Change]:
    """Yield every change of the catalogue with the values that suit these facts, whether or not its needs are met."""
    for family in FAMILIES:
        yield from family.changes(facts)


def unmet_needs(change: Change, facts: JobFacts) -> tuple[str, ...]:
    """Say why the change cannot be applied to this job, one line per need; empty if it can."""
    problems = []
    for need in change.knob.needs:
        fact = getattr(facts, need.fact)
        if fact is None:
            problems.append(f"{change.name} needs {_words(need)}, which is unknown")
        elif not _is_met(fact, need):
            problems.append(f"{change.name} needs {_words(need)}, but it is {fact}")
    return tuple(problems)


def set_by_script(facts: JobFacts) -> frozenset[str]:
    """Return the names of the knobs that the script sets itself."""
    is_set = {
        "dataloader-workers": facts.loader_workers,
        "dataloader-pin-memory": facts.loader_pins_memory,
        "dataloader-persistent-workers": facts.loader_has_persistent_workers,
        "optimizer-fused": facts.optimizer_is_fused,
        "autocast": facts.is_autocast,
        "compile": facts.is_compiled,
    }
    return frozenset(name for name, fact in is_set.items() if fact)


def problems(change: Change) -> tuple[str, ...]:
    """Return the problems of the change itself, one per line; no change in the catalogue has any."""
    lines = []
    if not (change.environment or change.launch or change.patch or change.argument):
        lines.append(f"{change.name} does nothing")
    if change.patch is not None and (problem := patch_problem(change.patch)) is not None:
        lines.append(f"{change.name}: {problem}")
    if not _is_in_range(change):
        lines.append(f"{change.name}: the value `{change.value}` is outside the knob's range")
    lines += [f"{change.name}: {line}" for line in forbidden_settings(change.environment)]
    return tuple(lines)


def _is_in_range(change: Change) -> bool:
    valid = change.knob.valid
    if valid.choices:
        return change.value in valid.choices
    if valid.least is None or valid.most is None:
        return change.value == ""
    return bool(re.fullmatch(r"\d+(\.\d+)?", change.value)) and valid.least <= float(change.value) <= valid.most


def _is_met(fact: Scalar, need: Need) -> bool:
    match need.relation:
        case "is":
            return fact == need.value
        case "is not":
            return fact != need.value
        case "at least":
            return _comparable(fact) >= _comparable(need.value)
        case "at most":
            return _comparable(fact) <= _comparable(need.value)


def _comparable(value: Scalar) -> tuple[float, ...]:
    """Return a number as it is, and a version by its numbers: 2.11 is above 2.9."""
    if isinstance(value, str):
        return tuple(float(number) for number in re.findall(r"\d+", value.partition("+")[0])[:3])
    return (float(value),)


def _words(need: Need) -> str:
    return f"{need.fact.replace('_', ' ')} {need.relation} {need.value}"
