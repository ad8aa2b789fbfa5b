"""`--knob 'batch={8,16,32}:--batch-size={}'`: the user's own arguments as a knob, and how they get into the command.

    batch={8,16,32}:--batch-size={}                                     what is trained changes: semantic
    workers/exact={4,8,16}:-j {}                                        the user says that it does not
    micro*accumulate={8*4,16*2,32*1}:--batch-size={} --accumulate={}    the product stays: the same global batch

An argument that the command has already is exchanged, with `=` or as the next word; else it is added at the end, but
before a `--`: what follows that is no option for the script's parser.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.candidates import is_allowed
from flatout.change.setting import setting
from flatout.errors import UsageError
from flatout.records.change import SAFETIES, Argument, Change, JobFacts, Knob, Safety, ValidRange

FAMILY = "arguments"
FORM = "NAME={VALUE,VALUE,...}:ARGUMENT={}"
_KNOB = re.compile(r"(?P<names>[^={}:/]*)(?:/(?P<safety>[^={}:]*))?=\{(?P<values>[^{}]*)\}:(?P<template>.*)", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_OPTION = re.compile(r"-(?![\d.]|$)")  # as argparse tells them from values: -1 and -.5 are numbers, - is a file


class UserKnob(msgspec.Struct, frozen=True, kw_only=True):
    """A `--knob` as it was read."""

    names: tuple[str, ...]  # several: their product stays the same
    safety: Safety | None  # as the user says; None: not said
    values: tuple[tuple[str, ...], ...]  # one of each name
    words: tuple[tuple[str, ...], ...]  # the template, an argument each, with `{}` where values go

    @property
    def name(self) -> str:
        return "*".join(self.names)


def parse_knob(text: str) -> UserKnob:
    """UsageError with one line where the text does not have the form."""
    match = _KNOB.fullmatch(text.strip())
    if match is None:
        raise _bad(text, f"must have the form {FORM}")
    names = tuple(name.strip() for name in match["names"].split("*"))
    if not all(_NAME.fullmatch(name) for name in names) or len(set(names)) < len(names):
        raise _bad(text, f"needs a name of small letters, digits and dashes before the `=`, but got `{match['names']}`")
    if match["safety"] is not None and match["safety"] not in SAFETIES:
        raise _bad(text, f"says how safe it is by {', '.join(SAFETIES)}, but got `{match['safety']}`")
    safety = next((safety for safety in SAFETIES if safety == match["safety"]), None)
    values = _values(text, match["values"], len(names))
    words = _words(text, match["template"])
    places = sum(word.count("{}") for argument in words for word in argument)
    if places != len(names):
        raise _bad(text, f"has {places} places `{{}}` for {len(names)} value{'s' * (len(names) > 1)}")
    return UserKnob(names=names, safety=safety, values=values, words=words)


def check_apart(knobs: Sequence[UserKnob]) -> None:
    """UsageError where two knobs have one name, or set the same argument: what won could not be told."""
    names: set[str] = set()
    flags: dict[str, str] = {}
    for knob in knobs:
        if knob.name in names:
            raise UsageError(
                f"each `--knob` needs a name of its own, but got `{knob.name}` twice",
                hint="give all values of an argument in one --knob, and other arguments another name",
            )
        names.add(knob.name)
        for flag in dict.fromkeys(argument[0].partition("=")[0] for argument in knob.words):
            if flag in flags:
                raise UsageError(
                    f"an argument may be in one `--knob` only, but got {flag} in `{flags[flag]}` and `{knob.name}`",
                    hint="give all values of an argument in one --knob",
                )
            flags[flag] = knob.name


def knob_changes(
    user_knob: UserKnob, command: Sequence[str], facts: JobFacts, allowed_safety: Safety = "exact"
) -> tuple[Change, ...]:
    """A change for each value that the command does not have already.

    UsageError with one line where the knob changes what is trained and that is not allowed.
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
        doc="An argument of the script, as the user gave it with --knob.",
        source="--knob",
    )
    changes = [
        setting(knob, "*".join(value), argument=Argument(words=_filled(user_knob.words, value)))
        for value in user_knob.values
        if value != current
    ]
    assert all(is_allowed(change, allowed_safety) for change in changes)
    return tuple(changes)


def with_arguments(command: Sequence[str], arguments: Sequence[Argument]) -> tuple[str, ...]:
    """The command with the arguments exchanged, or added at its end."""
    words = list(command)
    for argument in (one for each in arguments for one in each.words):
        flag, *assigned = argument[0].split("=", 1)
        places = _places(words, flag, has_value=bool(assigned) or len(argument) > 1)
        for position, length in reversed(places):
            words[position : position + length] = argument
        if not places:
            end = _options(words).stop
            words[end:end] = argument
    return tuple(words)


def current_values(user_knob: UserKnob, command: Sequence[str]) -> tuple[str, ...] | None:
    """The values that the command has now; None where one of the arguments is not in it."""
    found: list[str] = []
    for argument in user_knob.words:
        if not any("{}" in word for word in argument):
            continue
        flag = argument[0].partition("=")[0]
        places = _places(command, flag)
        if not places:
            return None
        position, length = places[-1]  # the last one counts
        value = command[position + 1] if length == 2 else command[position].partition("=")[2]
        if not value:  # an option that may stand without one: what it means then is the script's
            return None
        found.append(value)
    return tuple(found)


def _places(command: Sequence[str], flag: str, *, has_value: bool = True) -> list[tuple[int, int]]:
    """Where the argument stands among the script's options, and over how many words: a flag alone is one."""
    places = []
    options = _options(command)
    for position in options:
        word = command[position]
        if word.startswith(f"{flag}="):
            places.append((position, 1))
        elif word == flag:
            follows = position + 1 in options and not _OPTION.match(command[position + 1])
            places.append((position, 2 if has_value and follows else 1))
    return places


def _options(command: Sequence[str]) -> range:
    """The words in which the script looks for options: up to a `--`, where it is known which words are the script's."""
    start = _script(command)
    words = list(command)
    return range(start, words.index("--", start) if start and "--" in words[start:] else len(words))


def _script(command: Sequence[str]) -> int:
    """Where the script's own arguments begin: behind the first `*.py`, or the module after the last `-m`."""
    for position, word in enumerate(command):
        if word.endswith(".py"):
            return position + 1
    modules = [position for position, word in enumerate(command) if word == "-m"]
    return modules[-1] + 2 if modules else 0


def _values(text: str, values: str, num_names: int) -> tuple[tuple[str, ...], ...]:
    split = tuple(tuple(part.strip() for part in value.split("*")) for value in values.split(","))
    if not all(part for value in split for part in value):
        raise _bad(text, "has an empty value")
    if num_names == 1:
        split = tuple((value.strip(),) for value in values.split(","))
    if any(len(value) != num_names for value in split):
        raise _bad(text, f"needs {num_names} factors in each value, as in `8*4`")
    if len(set(split)) < len(split):
        raise _bad(text, "has the same value twice")
    if num_names > 1:
        if not all(part.isdigit() for value in split for part in value):
            raise _bad(text, "keeps a product, so its values must be whole numbers")
        products = {math.prod(int(part) for part in value) for value in split}
        if len(products) > 1:
            raise _bad(text, f"keeps a product, but its values give {', '.join(map(str, sorted(products)))}")
    return split


def _words(text: str, template: str) -> tuple[tuple[str, ...], ...]:
    """The template's words, a flag and the value behind it together."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise _bad(text, f"has an unfinished quotation: {error}") from None
    arguments: list[tuple[str, ...]] = []
    for word in words:
        if word == "{}" and arguments and len(arguments[-1]) == 1 and "=" not in arguments[-1][0]:
            arguments[-1] = (*arguments[-1], word)
        elif word == "{}":
            raise _bad(text, "needs an argument before a `{}` that stands alone")
        else:
            arguments.append((word,))
    return tuple(arguments)


def _filled(words: tuple[tuple[str, ...], ...], value: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    left = list(value)
    return tuple(
        tuple(word.replace("{}", left.pop(0)) if "{}" in word else word for word in argument) for argument in words
    )


def _safety(user_knob: UserKnob, current: tuple[str, ...] | None, facts: JobFacts) -> Safety:
    """Exact only where the product is known to stay what it is, and no layer looks at the micro-batch as a whole."""
    if len(user_knob.names) < 2 or facts.has_batch_norm is not False:
        return "semantic"
    return "exact" if current is not None and _product(current) == _product(user_knob.values[0]) else "semantic"


def _product(value: tuple[str, ...]) -> int | None:
    return math.prod(int(part) for part in value) if all(part.isdigit() for part in value) else None


def _why(user_knob: UserKnob, safety: Safety, current: tuple[str, ...] | None) -> str:
    if user_knob.safety is not None or safety != "semantic":
        return ""
    if len(user_knob.names) == 1:
        return " (it may change what is trained)"
    if current is None:
        return " (the command does not say what the product is now)"
    return " (the product differs from the command's, or batch normalisation sees the micro-batch)"


def _bad(text: str, what: str) -> UsageError:
    shown = " ".join(text.split())
    return UsageError(f"--knob '{shown}' {what}", hint="for example: --knob 'batch={8,16,32}:--batch-size={}'")
