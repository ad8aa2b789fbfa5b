"""The tables of the servers that Flatout knows: how to start, watch and set each; `engines/*.toml`, or a user's file.

In: the server's command, perhaps a name or a file. Out: an `Engine`. A knob is offered only if the engine's own
`--help` lists its option (`offered.py`): a table is older than the server that a user runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError, UsageError
from flatout.input_records import read_record
from flatout.records.change import Safety
from flatout.records.serving import CauseName

TABLES = Path(__file__).parent / "engines"
_HINT = "the tables of vLLM, SGLang, transformers and Triton are examples: flatout/serving/engines/*.toml"
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Value = bool | int | float | str


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of the engine's metrics; of several names, the first that it has is read."""

    queue_s: tuple[str, ...] = ()  # seconds, summed over requests
    prefill_s: tuple[str, ...] = ()
    decode_s: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()  # that these sums are of
    preemptions: tuple[str, ...] = ()
    kv_share: tuple[str, ...] = ()  # 0 to 1
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    prefix_queries: tuple[str, ...] = ()  # tokens
    prefix_hits: tuple[str, ...] = ()
    s_per_unit: float = 1.0  # of the sums: 1e-6 for microseconds

    @property
    def names(self) -> set[str]:
        values = (getattr(self, name) for name in self.__struct_fields__ if name != "s_per_unit")
        return {name for each in values for name in each}


class KnobRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting. Its values are given, or multiples of the present one; a flag is added, or removed."""

    name: str
    answers: tuple[CauseName, ...]
    safety: Safety
    doc: str
    source: str
    option: str | None = None
    values: tuple[Value, ...] = ()
    multiply: tuple[float, ...] = ()
    default: float | None = None  # the present value where the command does not set the option
    least: float | None = None
    most: float | None = None
    is_flag: bool = False  # the option has no value: add it
    removes: bool = False  # leave the option out, where the command has it
    variable: str | None = None  # of the environment, instead of an option
    model_config: tuple[str, ...] = ()  # lines of Triton's config.pbtxt, instead of an option
    needs_gpus: int = 0
    unless: tuple[str, ...] = ()  # options of the command with which it is not offered
    needs: tuple[str, ...] = ()  # options without all of which in the command it has no effect, and is not offered
    also: tuple[str, ...] = ()  # flags that are added with it, where the command has none


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of server."""

    name: str
    date: str = ""
    recognise: tuple[tuple[str, ...], ...] = ()  # words that follow each other in the command
    help: tuple[str, ...] = ("--help",)  # after the words that it was recognised by
    health: str = "/health"
    metrics_path: str | None = None
    metrics_port_option: str | None = None
    metrics_port: Port | None = None  # None: the server's own port
    metrics_need: str | None = None  # option without which there are no metrics
    port_option: str | None = None
    port: Port = 8000
    repository_option: str | None = None  # of Triton's models
    batch_option: str | None = None  # the most requests in a batch
    batch_default: int | None = None
    batch_of_one_without: str | None = None  # without this option, one request is answered after the other
    eager_with: tuple[str, ...] = ()  # options that switch graphs or compilation off
    eager_without: tuple[str, ...] = ()  # it is eager if the command has none of these
    no_prefix_cache_with: tuple[str, ...] = ()
    metrics: Metrics = Metrics()
    knob: tuple[KnobRow, ...] = ()


def known_engines() -> dict[str, Engine]:
    """Return the tables that Flatout has, by name."""
    tables = [read_engine(path) for path in sorted(TABLES.glob("*.toml"))]
    return {table.name: table for table in tables}


def read_engine(path: Path) -> Engine:
    """Return the table in a file. Raise InputError if it has another form."""
    engine = read_record(path, Engine, hint=_HINT)
    for knob in engine.knob:
        _check(path, knob)
    return engine


def _check(path: Path, knob: KnobRow) -> None:
    ways = [knob.option is not None, knob.variable is not None, bool(knob.model_config)]
    if sum(ways) != 1:
        raise InputError(
            f"`{path}`: the knob `{knob.name}` must have exactly one of `option`, `variable` and `model_config`",
            hint=_HINT,
        )
    has_value = bool(knob.values or knob.multiply or knob.is_flag or knob.removes or knob.model_config)
    if not has_value:
        raise InputError(
            f"`{path}`: the knob `{knob.name}` must have `values`, `multiply`, `is_flag` or `removes`", hint=_HINT
        )
    if knob.also and not knob.is_flag:
        raise InputError(f"`{path}`: the knob `{knob.name}` has `also`, and must then have `is_flag`", hint=_HINT)


def engine_of(command: Sequence[str], named: str | None) -> Engine:
    """Return the engine that a command starts, or that the user names. Raise UsageError if it is unknown."""
    engines = known_engines()
    if named is not None:
        if named.endswith(".toml"):
            return read_engine(Path(named))
        if named not in engines:
            raise UsageError(
                f"`--engine` must be one of {', '.join(engines)}, or a .toml file, but got {named}", hint=_HINT
            )
        return engines[named]
    for engine in engines.values():
        if recognised_until(engine, command) is not None:
            return engine
    raise UsageError(
        f"the command starts none of the servers that are known ({', '.join(engines)})",
        hint="name the nearest one with --engine, or describe the server in a table: --engine my-server.toml",
    )


def recognised_until(engine: Engine, command: Sequence[str]) -> int | None:
    """Return the number of words of the command up to those that the engine is recognised by; None without them."""
    names = [os.path.basename(word) for word in command]
    for words in engine.recognise:
        for start in range(len(names) - len(words) + 1):
            if tuple(names[start : start + len(words)]) == words:
                return start + len(words)
    return None
