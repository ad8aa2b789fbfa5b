"""Parse `--knob 'batch={8,16,32}:--batch-size={}'`, the user's own arguments as a knob, and set them in the command.

    batch={8,16,32}:--batch-size={}                                     the training changes: semantic
    workers/exact={4,8,16}:-j {}                                        the user says that it does not
    micro*accumulate={8*4,16*2,32*1}:--batch-size={} --accumulate={}    the product is constant: the same global batch

An argument that the command already has is replaced, whether its value follows `=` or is the next word. Any other
argument is appended, but before a `--`, because the script's parser accepts no options after it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flatout.change.batches import LOADER_BATCH
from flatout.change.candidates import is_allowed
from flatout.change.setting import setting
from flatout.errors import UsageError
from flatout.records.change import SAFETIES, Argument, Change, JobFacts, Knob, Safety, ValidRange

FAMILY = "arguments"
_BATCH = "batch"  # in the name of a knob: it is the number of samples of a step, or of a call
_ONLY_BATCH = ("batch", "batch-size", "batch_size")
WITH_LAMB = ("Adam", "AdamW")
FORM = "NAME={VALUE,VALUE,...}:ARGUMENT={}"
_KNOB = re.compile(r"(?P<names>[^={}:/]*)(?:/(?P<safety>[^={}:]*))?=\{(?P<values>[^{}]*)\}:(?P<template>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_OPTION = re.compile(r"-(?![\d.]|$)")  # as argparse tells them apart from values: -1 and -.5 are numbers, - is a file
_Values = tuple[tuple[str, ...], ...]  # values of a knob: each with one factor per name
_Words = tuple[tuple[str, ...], ...]  # arguments of the script: each a flag, or a flag and its value


class UserKnob(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed `--knob`."""

    names: tuple[str, ...]  # several names: their product stays the same
    safety: Safety | None  # None: the user does not say
    values: _Values
    words: _Words  # the template, with `{}` for values

    @property
    def name(self) -> str:
        return "*".join(self.names)


def parse_knob(text: str) -> UserKnob:
    """Parse a `--knob`. Raises a one-line UsageError if the text does not have this form."""
    match = _KNOB.fullmatch(text.strip())
    if match is None:
        raise _bad(text, f"must have the form {FORM}")
    names = tuple(name.strip() for name in match["names"].split("*"))
    if not all(_NAME.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise _bad(
            text, f"needs a name of lower-case letters, digits and dashes before the `=`, but got `{match['names']}`"
        )
    safety = _stated_safety(text, match["safety"])
    values = _values(text, match["values"], len(names))
    words = _words(text, match["template"])
    num_places = sum(word.count("{}") for argument in words for word in argument)
    if num_places != len(names):
        raise _bad(text, f"has {num_places} places `{{}}` for {len(names)} value{'s' * (len(names) > 1)}")
    return UserKnob(names=names, safety=safety, values=values, words=words)


def _stated_safety(text: str, stated: str | None) -> Safety | None:
    if stated is None:
        return None
    for safety in SAFETIES:
        if safety == stated:
            return safety
    raise _bad(text, f"must state its safety as {', '.join(SAFETIES)}, but got `{stated}`")


def check_apart(knobs: Sequence[UserKnob]) -> None:
    """Raise UsageError if two knobs have one name or set the same argument: their effects could not be separated."""
    names: set[str] = set()
    flags: dict[str, str] = {}
    for knob in knobs:
        if knob.name in names:
            raise UsageError(
                f"each `--knob` must have a unique name, but got `{knob.name}` twice",
                hint="pass all values of an argument in one --knob, and use a different name for each argument",
            )
        names.add(knob.name)
        for flag in dict.fromkeys(argument[0].partition("=")[0] for argument in knob.words):
            if flag in flags:
                raise UsageError(
                    f"an argument can be in only one `--knob`, but got {flag} in `{flags[flag]}` and `{knob.name}`",
                    hint="pass all values of an argument in one --knob",
                )
            flags[flag] = knob.name


def knob_changes(
    user_knob: UserKnob, command: Sequence[str], facts: JobFacts, allowed_safety: Safety = "exact"
) -> tuple[Change, ...]:
    """Return one change per value that the command does not have already.

    Raises UsageError with one line if the knob changes what is trained and that is not allowed.
    """
    current = current_values(user_knob, command)
    safety = user_knob.safety or _safety(user_knob, current, facts)
    if SAFETIES.index(safety) > SAFETIES.index(allowed_safety):
        why = _why(user_knob, safety, current)
        raise UsageError(
            f"the knob `{user_knob.name}` is {safety}{why}, and only {allowed_safety} is allowed",
            hint=f"add --allow {safety}, or write `{user_knob.name}/exact=...` if you know that it is not",
        )
    knob = Knob(
        name=user_knob.name,
        family=FAMILY,
        summary=f"the script's own {' '.join(word for argument in user_knob.words for word in argument)}",
        safety=safety,
        valid=ValidRange(choices=tuple("*".join(value) for value in user_knob.values)),
        gates=("loss", "memory"),
        doc="A script argument, as passed with --knob.",
        source="--knob",
    )
    changes = [
        setting(knob, "*".join(value), argument=Argument(words=_filled(user_knob.words, value)))
        for value in user_knob.values
        if value != current
    ]
    changes += _with_lamb(changes, current, facts, allowed_safety)
    assert all(is_allowed(change, allowed_safety) for change in changes)
    return tuple(changes)


def _with_lamb(
    changes: Sequence[Change], current: tuple[str, ...] | None, facts: JobFacts, allowed_safety: Safety
) -> list[Change]:
    """Return the changes to larger batches once more, with LAMB's steps, which let larger batches train."""
    is_batch = bool(changes) and sets_batch(changes[0])
    if not is_batch or allowed_safety != "semantic" or facts.optimizer not in WITH_LAMB or current is None:
        return []
    with_lamb = []
    for change in changes:
        larger = _size(change.value.split("*")) > _size(current)
        if change.knob.safety == "semantic" and larger:
            value = f"{change.value}+lamb"
            valid = ValidRange(choices=(*change.knob.valid.choices, value))
            knob = msgspec.structs.replace(change.knob, valid=valid)
            with_lamb.append(setting(knob, value, argument=change.argument, patch="lamb"))
    return with_lamb


def sets_batch(change: Change) -> bool:
    """Whether the change sets the size of batches: an argument of the script, or of its loader where it infers."""
    return _BATCH in change.knob.name and (change.argument is not None or change.knob.name == LOADER_BATCH.name)


def _size(values: Sequence[str]) -> float:
    """Return the product of the values; 0 if one of them is not a number."""
    try:
        return math.prod(float(value) for value in values)
    except ValueError:
        return 0.0


def with_arguments(command: Sequence[str], arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Return the command with the arguments replaced, or added at its end."""
    words = list(command)
    for new_words in (each for argument in arguments for each in argument.words):
        flag, *assigned = new_words[0].split("=", 1)
        places = _places(words, flag, has_value=bool(assigned) or len(new_words) > 1)
        for place in reversed(places):
            words[place.position : place.position + place.num_words] = new_words
        if not places:
            end = _options(words).stop
            words[end:end] = new_words
    return tuple(words)


def current_values(user_knob: UserKnob, command: Sequence[str]) -> tuple[str, ...] | None:
    """Return the values that the command has now; None if one of the arguments is not in it."""
    values: list[str] = []
    for argument in user_knob.words:
        if not any("{}" in word for word in argument):
            continue
        places = _places(command, argument[0].partition("=")[0])
        if not places:
            return None
        position, num_words = places[-1]  # the last one counts
        value = command[position + 1] if num_words == 2 else command[position].partition("=")[2]
        if not value:  # an option whose value is optional: only the script knows what it means without one
            return None
        values.append(value)
    return tuple(values)


class _Place(NamedTuple):
    """The position of an argument in the command."""

    position: int
    num_words: int  # 1: a flag alone, or with `=` and a value


def _places(command: Sequence[str], flag: str, *, has_value: bool = True) -> list[_Place]:
    """Find the argument among the script's options."""
    places = []
    options = _options(command)
    for position in options:
        word = command[position]
        if word.startswith(f"{flag}="):
            places.append(_Place(position, 1))
        elif word == flag:
            is_followed_by_value = position + 1 in options and not _OPTION.match(command[position + 1])
            places.append(_Place(position, 2 if has_value and is_followed_by_value else 1))
    return places


def _options(command: Sequence[str]) -> range:
    """Return the positions in which the script looks for options: up to a `--`, if its first argument is known."""
    start = _script(command)
    words = list(command)
    end = words.index("--", start) if start and "--" in words[start:] else len(words)
    return range(start, end)


def _script(command: Sequence[str]) -> int:
    """Return the position of the script's first argument: after the first `*.py`, or the module of the last `-m`."""
    for position, word in enumerate(command):
        if word.endswith(".py"):
            return position + 1
    modules = [position for position, word in enumerate(command) if word == "-m"]
    return modules[-1] + 2 if modules else 0


def _values(text: str, listed: str, num_names: int) -> _Values:
    """Parse the values between the braces: `8,16`, or `8*4,16*2` for two names."""
    values = tuple(tuple(factor.strip() for factor in value.split("*")) for value in listed.split(","))
    if not all(factor for value in values for factor in value):
        raise _bad(text, "has an empty value")
    if num_names == 1:  # an asterisk is a part of the value then
        values = tuple((value.strip(),) for value in listed.split(","))
    if any(len(value) != num_names for value in values):
        raise _bad(text, f"needs {num_names} factors in each value, as in `8*4`")
    if len(set(values)) < len(values):
        raise _bad(text, "has the same value twice")
    if num_names > 1:
        _check_product(text, values)
    return values


def _check_product(text: str, values: _Values) -> None:
    products = {_product(value) for value in values}
    if None in products:
        raise _bad(text, "keeps a product, so its values must be whole numbers")
    if len(products) > 1:
        shown = ", ".join(map(str, sorted(product for product in products if product is not None)))
        raise _bad(text, f"keeps a product, but its values give {shown}")


def _words(text: str, template: str) -> _Words:
    """Split the template into arguments, each a flag with the value after it."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise _bad(text, f"has an unfinished quotation: {error}") from None
    arguments: list[tuple[str, ...]] = []
    for word in words:
        if word != "{}":
            arguments.append((word,))
        elif arguments and len(arguments[-1]) == 1 and "=" not in arguments[-1][0]:
            arguments[-1] = (*arguments[-1], word)
        else:
            raise _bad(text, "needs an argument before a `{}` that stands alone")
    return tuple(arguments)


def _filled(words: _Words, value: tuple[str, ...]) -> _Words:
    """Put the factors of a value into the places of the template, in order."""
    factors = iter(value)
    return tuple(
        tuple(word.replace("{}", next(factors)) if "{}" in word else word for word in argument) for argument in words
    )


def _safety(user_knob: UserKnob, current: tuple[str, ...] | None, facts: JobFacts) -> Safety:
    """Return `exact` if the product is known to stay the same and no layer sees the micro-batch as a whole.

    Also in a script that only infers, of a knob whose name is that of a batch: its samples do not depend on each other.
    """
    if facts.only_infers and user_knob.name in _ONLY_BATCH:
        return "exact"
    if len(user_knob.names) < 2 or facts.has_batch_norm is not False or current is None:
        return "semantic"
    return "exact" if _product(current) == _product(user_knob.values[0]) else "semantic"


def _product(value: tuple[str, ...]) -> int | None:
    """Multiply the factors; None if a factor is not a whole number."""
    if not all(factor.isdecimal() for factor in value):
        return None
    return math.prod(int(factor) for factor in value)


def _why(user_knob: UserKnob, safety: Safety, current: tuple[str, ...] | None) -> str:
    if user_knob.safety is not None or safety != "semantic":
        return ""
    if len(user_knob.names) == 1:
        return " (it can change what is trained)"
    if current is None:
        return " (the command does not say what the product is now)"
    return " (the product differs from the command's, or batch normalisation sees the micro-batch)"


def _bad(text: str, problem: str) -> UsageError:
    shown = " ".join(text.split())
    return UsageError(f"--knob '{shown}' {problem}", hint="for example: --knob 'batch={8,16,32}:--batch-size={}'")
