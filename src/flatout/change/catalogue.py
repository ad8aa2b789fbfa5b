"""All knobs and changes of all families, and what stands in the way of one: its needs, its range, the fence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType

from flatout.change import checkpoint, dataloader, ddp, fsdp2, kernels, memory, nccl, optimizer, process
from flatout.change.fence import fenced
from flatout.change.patches import patch_problem
from flatout.records.change import Change, JobFacts, Knob, Need, Scalar

# A family is a module with FAMILY, KNOBS and `changes(facts)`, which gives the values that suit the facts, best first.
# Where the predicted bounds of two changes are equal, the one further up is tried first.
FAMILIES: tuple[ModuleType, ...] = (
    nccl,
    dataloader,
    ddp,
    fsdp2,
    checkpoint,
    optimizer,
    memory,
    process,
    kernels,
)
KNOBS: tuple[Knob, ...] = tuple(knob for family in FAMILIES for knob in family.KNOBS)


def all_changes(facts: JobFacts) -> Iterator[Change]:
    """Every change of the catalogue with the values that suit these facts, whether or not its needs are met."""
    for family in FAMILIES:
        yield from family.changes(facts)


def unmet_needs(change: Change, facts: JobFacts) -> tuple[str, ...]:
    """Why the change cannot be applied to this job, one line a need; empty: it can."""
    found = []
    for need in change.knob.needs:
        known = getattr(facts, need.fact)
        if known is None:
            found.append(f"{change.name} needs {_words(need)}, which is not known")
        elif not _is_met(known, need):
            found.append(f"{change.name} needs {_words(need)}, but it is {known}")
    return tuple(found)


def already_turned(facts: JobFacts) -> frozenset[str]:
    """Knobs that the script has turned itself."""
    turned = {
        "dataloader-workers": bool(facts.loader_workers),
        "dataloader-pin-memory": bool(facts.loader_pins_memory),
        "dataloader-persistent-workers": bool(facts.loader_has_persistent_workers),
        "optimizer-fused": bool(facts.optimizer_is_fused),
        "autocast": bool(facts.is_autocast),
        "compile": bool(facts.is_compiled),
    }
    return frozenset(name for name, is_turned in turned.items() if is_turned)


def problems(change: Change) -> tuple[str, ...]:
    """What is wrong with a change in itself, one line each; of the catalogue none has any."""
    found = []
    if not (change.environment or change.launch or change.patch or change.argument):
        found.append(f"{change.name} does nothing")
    if change.patch is not None and (problem := patch_problem(change.patch)) is not None:
        found.append(f"{change.name}: {problem}")
    if not _is_in_range(change):
        found.append(f"{change.name}: the value `{change.value}` is out of the knob's range")
    found += [f"{change.name}: {line}" for line in fenced(change.environment)]
    return tuple(found)


def _is_in_range(change: Change) -> bool:
    valid = change.knob.valid
    if valid.choices:
        return change.value in valid.choices
    if valid.least is None or valid.most is None:
        return change.value == ""
    return bool(re.fullmatch(r"\d+(\.\d+)?", change.value)) and valid.least <= float(change.value) <= valid.most


def _is_met(known: Scalar, need: Need) -> bool:
    match need.relation:
        case "is":
            return known == need.value
        case "is not":
            return known != need.value
        case "at least":
            return _ordered(known) >= _ordered(need.value)
        case "at most":
            return _ordered(known) <= _ordered(need.value)


def _ordered(value: Scalar) -> tuple[float, ...]:
    """Numbers as they are, versions by their numbers: 2.11 is above 2.9."""
    if isinstance(value, str):
        return tuple(float(number) for number in re.findall(r"\d+", value.partition("+")[0])[:3])
    return (float(value),)


def _words(need: Need) -> str:
    return f"{need.fact.replace('_', ' ')} {need.relation} {need.value}"
