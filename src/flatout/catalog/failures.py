"""Map the wording of job failures to their meaning, by `failures_of_programs.toml` and `failures.toml`.

In: the type of an exception and its message, or a line of a log. Out: the first entry of the table that fits; None if
none does. Names of data, which are quoted strings, URLs and paths, must have been taken out of the message before.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, get_args

import msgspec

from flatout.catalog.error_codes import cuda_errors_in, errnos_in, http_statuses_in

FailureClass = Literal[
    "device-oom",
    "disk-full",
    "gpu",
    "host",
    "host-oom",
    "job",
    "mistake",
    "network",
    "preempted",
    "secondary",
    "shm-full",
    "timeout",
    "unknown",
]
Restart = Literal["yes", "no", "elsewhere"]
Phase = Literal["start", "training"]
CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)

_FILE = Path(__file__).with_name("failures.toml")
_OF_PROGRAMS = Path(__file__).with_name("failures_of_programs.toml")  # tried first
_ANY = "*"  # at the beginning of a type: any type that ends so
_DEFAULT_TYPES = ("@native",)
# Lines that their program does not mean as a failure.
_IS_INFORMATION = re.compile(r"\b(?:INFO|DEBUG|TRACE|VERBOSE|NOTICE|[Cc]orrected|[Cc]orrectable|CE memory)\b|^I\d{4} ")
_DENIES = re.compile(r"(?i)\b(?:no|without|never)\s+(?:\w+\s+(?:or|and)\s+)?$")
_DENIAL_CHARACTERS = 30
_AFTER_A_HEADING = re.compile(r"(Last error:)\s+")  # NCCL's own words stand on the next line
_SOURCE = re.compile(r"<[\w .-]*\.(?:cc|cpp|hpp|cu|cuh|h)(?::\d+)?>")  # `<proxy.cc:812>`: where, and not what
_MAX_GAP = 200  # maximum number of characters that a `*` matches


class _Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failure_class: FailureClass | None = msgspec.field(name="class", default=None)
    restart: Restart | None = None


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the table. `failures.toml` describes its fields."""

    name: str
    failure_class: FailureClass = msgspec.field(name="class")
    restart: Restart
    means: str
    way_out: str
    source: str
    types: tuple[str, ...] = _DEFAULT_TYPES
    phrases: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    errnos: tuple[int, ...] = ()
    http: tuple[str, ...] = ()
    cuda: tuple[int, ...] = ()
    exceeds: tuple[str, str] | None = None
    of_peers: bool = False
    at_start: _Override | None = None
    in_training: _Override | None = None

    @property
    def is_family(self) -> bool:
        """Whether the entry only says what a line is about and what it says of it: any known wording is better."""
        return bool(self.about)

    def class_in(self, phase: Phase | None) -> FailureClass:
        """Return the class before or after the first step; None: the phase is unknown."""
        override = self._override(phase)
        if override is None or override.failure_class is None:
            return self.failure_class
        return override.failure_class

    def restart_in(self, phase: Phase | None) -> Restart:
        """Return whether another start helps, before or after the first step."""
        override = self._override(phase)
        if override is None or override.restart is None:
            return self.restart
        return override.restart

    def _override(self, phase: Phase | None) -> _Override | None:
        if phase == "start":
            return self.at_start
        return self.in_training if phase == "training" else None


class LikelyFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a class means where no known wording says more."""

    means: str
    way_out: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    date: str
    groups: dict[str, tuple[str, ...]]
    words: dict[str, tuple[str, ...]]
    cuda_errors: dict[str, tuple[str, ...]]
    likely: dict[FailureClass, LikelyFailure]
    failure: tuple[KnownFailure, ...]


class _OfPrograms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    failure: tuple[KnownFailure, ...]


class _Phrase(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A phrase, and its longest literal part, in lower case: a text without it need not be searched."""

    words: str
    literal: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern is compiled when it is needed first: all of them take 0.2 s, and few are needed."""
        return re.compile(phrase_pattern(self.words), re.IGNORECASE | re.MULTILINE)


class _Message:
    """A message and, once an entry asks for them, the codes of errors in it."""

    def __init__(self, text: str, cuda_errors: dict[str, tuple[str, ...]]) -> None:
        self.text = text
        self.lowered = _lowered(text)
        self._cuda_errors = cuda_errors

    @cached_property
    def errnos(self) -> dict[int, str]:
        return errnos_in(self.text)

    @cached_property
    def http(self) -> dict[int, str]:
        return http_statuses_in(self.text)

    @cached_property
    def cuda(self) -> dict[int, str]:
        return cuda_errors_in(self.text, self._cuda_errors)


class _Matcher(msgspec.Struct, frozen=True, kw_only=True):
    failure: KnownFailure
    types: frozenset[str]
    suffixes: tuple[str, ...]  # of names of types, for "*Timeout"
    phrases: tuple[_Phrase, ...]
    about: tuple[_Phrase, ...]
    says: tuple[_Phrase, ...]

    def _fits_type(self, exception: str) -> bool:
        if exception in self.types:
            return True
        return exception != "" and exception.endswith(self.suffixes)

    def find(self, exception: str, message: _Message) -> str | None:
        """Return the words of the message that fit, which are empty if the type alone decides; None if none fit."""
        if not self._fits_type(exception):
            return None
        failure = self.failure
        if failure.exceeds is not None and not _exceeds(message.text, *failure.exceeds):
            return None
        if failure.is_family:
            return self._find_family(message)
        if not (self.phrases or failure.errnos or failure.http or failure.cuda):
            return ""
        for phrase in self.phrases:
            match = phrase.pattern.search(message.text) if phrase.literal in message.lowered else None
            if match is not None and not (exception == "" and _is_denied(match)):
                return match[0].strip()
        return _code_in(failure, message)

    def _find_family(self, message: _Message) -> str | None:
        """Return what a line says of what the family is about; None if no line has both."""
        if not _contains_any(self.about, message.lowered) or not _contains_any(self.says, message.lowered):
            return None
        for line in _AFTER_A_HEADING.sub(r"\1 ", message.text).splitlines():
            if is_information(line) or _first_in(self.about, line) is None:
                continue
            said = _first_in(self.says, _SOURCE.sub("", line))
            if said is not None:
                return said
        return None


def _lowered(text: str) -> str:
    """Return a text as the literal parts of phrases are written: in lower case, with single spaces."""
    return " ".join(text.lower().split())


def _contains_any(phrases: tuple[_Phrase, ...], lowered: str) -> bool:
    return any(phrase.literal in lowered for phrase in phrases)


def _first_in(phrases: tuple[_Phrase, ...], line: str) -> str | None:
    """Return the words of the first of these phrases that the line contains."""
    lowered = _lowered(line)
    for phrase in phrases:
        match = phrase.pattern.search(line) if phrase.literal in lowered else None
        if match is not None and not _is_denied(match):
            return match[0].strip()
    return None


def _is_denied(match: re.Match[str]) -> bool:
    """Whether the line says that it is not so: `no NaN or Inf found`."""
    return _DENIES.search(match.string[max(match.start() - _DENIAL_CHARACTERS, 0) : match.start()]) is not None


def _code_in(failure: KnownFailure, message: _Message) -> str | None:
    """Return the words of the first error code of the message that the entry names; None if there is none."""
    for numbers, in_message in ((failure.errnos, message.errnos), (failure.cuda, message.cuda)):
        for number in numbers:
            if number in in_message:
                return in_message[number]
    for status in failure.http:
        for number, words in message.http.items():
            if fnmatchcase(str(number), status.replace("x", "?")):
                return words
    return None


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that fits, and the words by which it does."""

    failure: KnownFailure
    words: str

    @property
    def is_by_type(self) -> bool:
        """Whether only the type of the exception fits: its text says nothing that is known."""
        return not self.words


def known_failures() -> tuple[KnownFailure, ...]:
    """Return all entries, in the order in which they are tried."""
    return tuple(matcher.failure for matcher in _matchers())


def likely_failure(failure_class: FailureClass) -> LikelyFailure:
    """Return what is said of a class that only the words of similar failures suggest."""
    return _table().likely[failure_class]


def is_information(line: str) -> bool:
    """Whether the program that wrote this line marks it as no failure."""
    return _IS_INFORMATION.search(line) is not None


def fit(exception: str, message: str) -> Fit | None:
    """Return the first entry that fits this type, without its module, and this message. The type can be empty."""
    parsed = _Message(message, _table().cuda_errors)
    for matcher in _matchers():
        words = matcher.find(exception, parsed)
        if words is not None:
            return Fit(failure=matcher.failure, words=words)
    return None


def word_groups_in(text: str) -> set[str]:
    """Return the names of the groups of `words` of which the text has one."""
    lowered = _lowered(text)
    return {name for name, phrases in _word_groups().items() if _is_any_in(phrases, text, lowered)}


def _is_any_in(phrases: tuple[_Phrase, ...], text: str, lowered: str) -> bool:
    return any(phrase.literal in lowered and phrase.pattern.search(text) is not None for phrase in phrases)


def groups_of_type(exception: str) -> list[str]:
    """Return the names of the groups to which the type of an exception belongs."""
    return [name for name, types in _table().groups.items() if exception and exception in types]


def codes_in(text: str) -> set[str]:
    """Return the codes of errors in a text, each as one word: `errno=28`, `http=503`, `cuda=700`."""
    message = _Message(text, _table().cuda_errors)
    statuses = {f"http={number}" for number in message.http} | {f"http={number // 100}xx" for number in message.http}
    numbers = {f"errno={number}" for number in message.errnos} | {f"cuda={number}" for number in message.cuda}
    return statuses | numbers


def is_exception_type(name: str) -> bool:
    """Whether the table names this type, or its ending; not in lower case, because `error` begins log lines."""
    types, suffixes = _known_types()
    if name.islower():
        return False
    has_known_ending = name.endswith(suffixes) and name not in suffixes
    return name in types or (has_known_ending and name[0].isupper())  # NCCL's codes begin in lower case


@cache
def _known_types() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the types that the table names, and the endings of types."""
    types = {name for matcher in _matchers() for name in matcher.types if name.isidentifier()}
    suffixes = {suffix for matcher in _matchers() for suffix in matcher.suffixes if suffix}
    return frozenset(types), tuple(sorted(suffixes))


def phrase_pattern(phrase: str) -> str:
    """Translate a phrase of the table to a regular expression."""
    is_at_line_start = phrase.startswith("^")
    words = phrase.removeprefix("^")
    pattern = "".join(_translated(part) for part in re.split(r"(\*|#|\s+)", words))
    if is_at_line_start:
        begin = r"(?:^\s*)"
    else:
        begin = r"(?<![\w./-])" if _is_word(words[0]) else ""
    end = r"(?![\w-]|/\w)" if _is_word(words[-1]) else ""
    return f"{begin}{pattern}{end}"


def _translated(part: str) -> str:
    if part == "*":
        return rf"[^\n]{{0,{_MAX_GAP}}}?"
    if part == "#":
        return r"\d+(?:\.\d+)?"
    return r"\s+" if part.isspace() else re.escape(part)


def _is_word(character: str) -> bool:
    return character.isalnum() or character in "_#"


def _exceeds(message: str, larger: str, smaller: str) -> bool:
    values = [re.search(rf"\b{re.escape(name)}\W+(\d+)", message) for name in (larger, smaller)]
    if values[0] is None or values[1] is None:
        return False
    return int(values[0][1]) > int(values[1][1])


@cache
def _table() -> _Table:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Table)


@cache
def _word_groups() -> dict[str, tuple[_Phrase, ...]]:
    return {name: tuple(_phrase(words) for words in group) for name, group in _table().words.items()}


@cache
def _of_programs() -> tuple[KnownFailure, ...]:
    return msgspec.convert(tomllib.loads(_OF_PROGRAMS.read_text(encoding="utf-8")), _OfPrograms).failure


@cache
def _matchers() -> tuple[_Matcher, ...]:
    table = _table()
    return tuple(_matcher(failure, table) for failure in (*_of_programs(), *table.failure))


def _matcher(failure: KnownFailure, table: _Table) -> _Matcher:
    types: set[str] = set()
    for name in failure.types:
        types.update(table.groups[name[1:]] if name.startswith("@") else (name,))
    return _Matcher(
        failure=failure,
        types=frozenset(types),
        suffixes=tuple(name.removeprefix(_ANY) for name in types if name.startswith(_ANY)),
        phrases=_all_phrases(failure.phrases, table.words),
        about=_all_phrases(failure.about, table.words),
        says=_all_phrases(failure.says, table.words),
    )


def _all_phrases(phrases: tuple[str, ...], words: dict[str, tuple[str, ...]]) -> tuple[_Phrase, ...]:
    """Return the phrases, of which `@name` stands for the group of words of that name."""
    spelled: list[_Phrase] = []
    for phrase in phrases:
        group = words[phrase[1:]] if phrase.startswith("@") else (phrase,)
        spelled += [_phrase(one) for one in group]
    return tuple(spelled)


@cache
def _phrase(words: str) -> _Phrase:
    literals = re.split(r"[*#]", words.removeprefix("^").lower())
    return _Phrase(words=words, literal=max((" ".join(literal.split()) for literal in literals), key=len))
