"""Turn causes into changes to try: the knobs that answer a cause, with values that suit the server's command.

In: the engine's table, the server's command, causes, the options that its `--help` lists. Out: `ServingCandidate`s,
those of the largest cause first, and the knobs that are not offered with the reason. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flatout.records.change import SAFETIES, Safety
from flatout.records.serving import Cause, CauseName, ServerChange, UnofferedKnob
from flatout.serving.engine import Engine, KnobRow, Value
from flatout.serving.words import ServerCommand, has_option, option_value


class ServerMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of a knob depend on."""

    num_gpus: int
    cores: float


class ServingCandidate(msgspec.Struct, frozen=True, kw_only=True):
    change: ServerChange
    cause: CauseName


def candidates(
    engine: Engine, command: ServerCommand, causes: Sequence[Cause], *, machine: ServerMachine, allowed: Safety
) -> list[ServingCandidate]:
    """Return the changes to try, the first value of each knob of a cause before its second ones."""
    found: list[ServingCandidate] = []
    for cause in causes:
        of_knobs = [
            [ServingCandidate(change=change, cause=cause.name) for change in _changes(row, command, machine)]
            for row in engine.knob
            if cause.name in row.answers and refusal(row, command, machine, allowed) is None
        ]
        found += _in_turn(of_knobs)
    first_of_each = {candidate.change.name: candidate for candidate in reversed(found)}
    return [candidate for candidate in found if first_of_each[candidate.change.name] is candidate]


def _in_turn(of_knobs: Sequence[Sequence[ServingCandidate]]) -> Iterator[ServingCandidate]:
    for place in range(max(map(len, of_knobs), default=0)):
        for each in of_knobs:
            yield from each[place : place + 1]


def refusal(row: KnobRow, command: ServerCommand, machine: ServerMachine, allowed: Safety) -> str | None:
    """Say why a knob is not tried on this command and machine; None if it is."""
    if SAFETIES.index(row.safety) > SAFETIES.index(allowed):
        return f"it is {row.safety}: allow it with --allow {row.safety}"
    if row.needs_gpus > machine.num_gpus:
        return f"it needs {row.needs_gpus} GPUs, and this machine has {machine.num_gpus}"
    set_already = [option for option in row.unless if has_option(command.words, option)]
    if set_already:
        return f"the command has {set_already[0]}"
    missing = [option for option in row.needs if not has_option(command.words, option)]
    if missing:
        return f"it has no effect without {missing[0]}"
    return None


def without_unlisted(engine: Engine, help_text: str | None) -> tuple[Engine, tuple[UnofferedKnob, ...]]:
    """Return the engine without the knobs whose option its own help does not list. No help: no option is offered."""
    kept, left_out = [], []
    for row in engine.knob:
        options = () if row.option is None else (row.option, *row.also)
        unlisted = [option for option in options if help_text is None or not lists(help_text, option)]
        if not unlisted:
            kept.append(row)
        elif help_text is None:
            left_out.append(UnofferedKnob(knob=row.name, reason="the server's help could not be read"))
        else:
            left_out.append(UnofferedKnob(knob=row.name, reason=f"the server's help does not list {unlisted[0]}"))
    return msgspec.structs.replace(engine, knob=tuple(kept)), tuple(left_out)


def lists(help_text: str, option: str) -> bool:
    """Whether the help lists the option as a separate word: `--compile` is not in `--compile-mode`."""
    start = 0
    while (place := help_text.find(option, start)) >= 0:
        before = help_text[place - 1 : place]
        after = help_text[place + len(option) : place + len(option) + 1]
        if not _continues(before) and not _continues(after):
            return True
        start = place + 1
    return False


def _continues(character: str) -> bool:
    return character.isalnum() or character in ("-", "_") if character else False


def _changes(row: KnobRow, command: ServerCommand, machine: ServerMachine) -> Iterator[ServerChange]:
    """Yield a change for each value of the knob that differs from the present one."""
    common = {"knob": row.name, "safety": row.safety, "answers": row.answers, "source": row.source}
    if row.model_config:
        yield ServerChange(name=row.name, model_config=row.model_config, **common)  # type: ignore[arg-type]
        return
    if row.variable is not None:
        for value in _shown_values(row.values, machine):
            if command.environment.get(row.variable) != value:
                name = f"{row.variable}={value}"
                yield ServerChange(name=name, environment={row.variable: value}, **common)  # type: ignore[arg-type]
        return
    assert row.option is not None
    bare = row.option.lstrip("-")
    if row.removes:
        if has_option(command.words, row.option):
            yield ServerChange(name=f"without-{bare}", removed=(row.option,), **common)  # type: ignore[arg-type]
        return
    if row.is_flag:
        flags = [option for option in (row.option, *row.also) if not has_option(command.words, option)]
        if row.option in flags:
            name = " with ".join(option.lstrip("-") for option in flags)
            yield ServerChange(name=name, options=dict.fromkeys(flags), **common)  # type: ignore[arg-type]
        return
    for value in _values(row, option_value(command.words, row.option), machine):
        yield ServerChange(name=f"{bare}={value}", options={row.option: value}, **common)  # type: ignore[arg-type]


def _values(row: KnobRow, present: str | None, machine: ServerMachine) -> list[str]:
    values = _shown_values(row.values, machine)
    number = _number(present) if present is not None else row.default
    if number is not None:
        values += [_shown(_bounded(row, number * factor, is_whole=number == int(number))) for factor in row.multiply]
    now = present if present is not None else (None if row.default is None else _shown(row.default))
    return [value for value in dict.fromkeys(values) if value != now]


def _bounded(row: KnobRow, value: float, *, is_whole: bool) -> float:
    least = row.least if row.least is not None else 0.0
    bounded = max(value, least)
    if row.most is not None:
        bounded = min(bounded, row.most)
    return round(bounded) if is_whole and bounded >= 1 else bounded


def _shown_values(values: Sequence[Value], machine: ServerMachine) -> list[str]:
    """Return the values as texts; `{cores}` and `{gpus}` stand for those of this machine."""
    cores, gpus = str(max(int(machine.cores), 1)), str(machine.num_gpus)
    return list(dict.fromkeys(_shown(value).replace("{cores}", cores).replace("{gpus}", gpus) for value in values))


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
