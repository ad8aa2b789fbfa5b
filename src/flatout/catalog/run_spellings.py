"""Interpret free text in tables of measured runs, by the patterns of `run_spellings.toml`.

In: one text, such as a row's `interconnect`. Out: a value, or None if the text contains nothing known. `plan` gives the
value its meaning.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

_FILE = Path(__file__).with_name("run_spellings.toml")
Value = TypeVar("Value")


class Spelling(msgspec.Struct, Generic[Value], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table entry: the texts that it matches, and their value."""

    value: Value
    words: tuple[str, ...] = ()
    and_words: tuple[str, ...] = ()
    except_words: tuple[str, ...] = ()
    source: str = ""

    def fits(self, text: str) -> bool:
        if any(word in text for word in self.except_words):
            return False
        has_word = not self.words or any(word in text for word in self.words)
        return has_word and all(word in text for word in self.and_words)


class GpuSpelling(Spelling[str], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[gpu]]` entry; its value is the alias of a system in `systems.toml`."""

    link_gb_per_s: float | None = None  # if different from the system's


class NetworkSpelling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[network]]` entry: how a node's network adapters are written."""

    pattern: str
    unit_gbit_per_s: float
    source: str = ""

    def bytes_per_s_of_node(self, text: str, gpus_per_node: int) -> float | None:
        match = re.search(self.pattern, text)
        if match is None:
            return None
        groups = match.groupdict()
        rate = float(groups.get("count") or 1) * float(groups.get("rate") or 1) * self.unit_gbit_per_s
        per_node = rate / 8 * 1e9
        return per_node * gpus_per_node if groups.get("per") == "GPU" else per_node


class Patterns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Regular expressions with one group, which matches a number."""

    nvlink_domain: str  # GPUs, in `interconnect`
    shard_group: str  # ranks, in `sharding`
    hbm2e_gb: str  # gigabytes, in the GPU's name
    power_limit_w: str  # watts, in the GPU's name


class RunSpellings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    date: str
    gpu: tuple[GpuSpelling, ...]
    vocabulary: tuple[Spelling[int], ...]
    document: tuple[Spelling[int], ...]
    precision: tuple[Spelling[str], ...]
    zero: tuple[Spelling[int], ...]
    sharded_in_node: tuple[Spelling[bool], ...]
    network: tuple[NetworkSpelling, ...]
    patterns: Patterns

    def gpu_named(self, text: str) -> GpuSpelling | None:
        """Return the entry for a GPU's name, such as `A100-SXM-80GB`; None if the GPU is unknown."""
        return next((spelling for spelling in self.gpu if spelling.fits(text.lower())), None)

    def node_bytes_per_s(self, interconnect: str, gpus_per_node: int) -> float | None:
        """Return the rate of a node's adapters from a text such as `8x HDR 200Gb/s per node`; None if none is named."""
        rates = (spelling.bytes_per_s_of_node(interconnect, gpus_per_node) for spelling in self.network)
        return next((rate for rate in rates if rate is not None), None)


def value_of(spellings: Iterable[Spelling[Value]], text: str) -> Value:
    """Return the value of the first entry that matches the text. The last entry of such a table matches any text."""
    return next(spelling.value for spelling in spellings if spelling.fits(text.lower()))


def number_in(pattern: str, text: str) -> int | None:
    """Return the number that the pattern finds in the text; None if it does not match."""
    match = re.search(pattern, text)
    return None if match is None else int(match[1])


@cache
def run_spellings() -> RunSpellings:
    """Return the tables of the file."""
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), RunSpellings)
