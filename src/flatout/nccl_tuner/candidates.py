"""Read the spaces of candidates by transport (`spaces.toml`), and arrange them as starts of the ranks.

In: a transport, and whether the plugin can be used. Out: the starts, each with the candidates that are measured in it.
A setting that the library reads once a process makes a start; everything else is measured in turn in one start, that
of the settings of the process which were found best.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.input_files import read_toml
from flatout.records.nccl_tuning import DEFAULT, NcclCandidate, Reads, Start

_FILE = Path(__file__).with_name("spaces.toml")


class SettingFact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[setting]]` entry: when the library reads a setting."""

    name: str
    reads: Reads
    source: str


class _NamedStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    environment: dict[str, str]


class _Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A choice of the tuner plugin."""

    algorithm: str | None = None
    protocol: str | None = None
    max_channels: int | None = None

    def candidate(self) -> NcclCandidate:
        name = row_name(self.algorithm, self.protocol, self.max_channels)
        return NcclCandidate(
            name=name, algorithm=self.algorithm, protocol=self.protocol, max_channels=self.max_channels
        )


def row_name(algorithm: str | None, protocol: str | None, max_channels: int | None) -> str:
    """Return the name of a choice of the tuner plugin: `ring, simple`, `at most 2 channels`."""
    words = [word for word in (algorithm, protocol) if word is not None]
    if max_channels is not None:
        words.append(f"at most {max_channels} channel{'s' * (max_channels > 1)}")
    return ", ".join(words)


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a communicator. NCCL refuses one of them alone."""

    min_ctas: int
    max_ctas: int

    def candidate(self) -> NcclCandidate:
        name = f"{self.min_ctas} to {self.max_ctas} CTAs"
        return NcclCandidate(name=name, min_ctas=self.min_ctas, max_ctas=self.max_ctas)


class _Gloo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    threads: int

    def candidate(self) -> NcclCandidate:
        return NcclCandidate(name=f"{self.threads} thread{'s' * (self.threads > 1)}", threads=self.threads)


class Space(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[space]]` entry: what is worth measuring over a transport."""

    transport: str
    source: str
    start: tuple[_NamedStart, ...] = ()
    choice: tuple[_Choice, ...] = ()
    options: tuple[_Options, ...] = ()
    gloo: tuple[_Gloo, ...] = ()


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    setting: tuple[SettingFact, ...]
    space: tuple[Space, ...]


@cache
def _file() -> _File:
    return msgspec.convert(read_toml(_FILE), _File)


def all_settings() -> tuple[SettingFact, ...]:
    return _file().setting


def all_spaces() -> tuple[Space, ...]:
    return _file().space


def find_space(transport: str) -> Space:
    """Return the space of a transport. Raises UsageError if there is none."""
    for space in all_spaces():
        if space.transport == transport:
            return space
    names = ", ".join(space.transport for space in all_spaces())
    raise UsageError(f"`--transport` must be one of {names}, but got {transport}")


def process_starts(space: Space) -> tuple[Start, ...]:
    """Return one start for the default and one for each setting that the library reads once a process."""
    starts = [Start(name=DEFAULT, candidates=(NcclCandidate(name=DEFAULT),))]
    for entry in space.start:
        candidate = NcclCandidate(name=DEFAULT, environment=entry.environment)
        starts.append(
            Start(name=entry.name, settings=entry.name, environment=entry.environment, candidates=(candidate,))
        )
    return tuple(starts)


def start_of_choices(space: Space, settings: str, environment: dict[str, str], *, has_plugin: bool) -> Start:
    """Return the start that compares everything that is read at the creation of a communicator.

    Its first candidate is the process with the settings that were chosen before, and without a choice of the plugin.
    """
    choices = [choice.candidate() for choice in space.choice] if has_plugin else []
    others = [entry.candidate() for entry in space.options] + [entry.candidate() for entry in space.gloo]
    alone = NcclCandidate(name=DEFAULT, environment=environment)
    return Start(name="choices", settings=settings, environment=environment, candidates=(alone, *choices, *others))


def starts_of_table(table: str, settings: str, environment: dict[str, str]) -> tuple[Start, Start]:
    """Return the starts that compare a whole table with the same settings alone, without a plugin."""
    chosen = NcclCandidate(name="table", table=table)
    return (
        Start(name=DEFAULT, settings=settings, environment=environment, candidates=(NcclCandidate(name=DEFAULT),)),
        Start(name="table", settings=settings, environment=environment, candidates=(chosen,)),
    )
