"""Read the description of a load: a `load.toml`, or a trace of arrivals as CSV or JSONL.

In: a path. Out: a `Load`. `requests.py` makes the requests of it. A trace gives each request's time and lengths; a
`load.toml` gives a rate, or several, and lengths, and may name a trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from flatout.errors import InputError
from flatout.input_records import read_record
from flatout.serving.traces import TraceRow, read_trace

HINT = "a load has lines such as `rates = [1, 2, 4]`, `requests = 64`, `prompt_tokens = 200`, `output_tokens = 64`"
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Arrivals = Literal["poisson", "uniform", "bursty"]
TRACE_SUFFIXES = (".csv", ".jsonl")


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent to the server. `rows` are those of a trace; without any, lengths are drawn between two bounds."""

    rates: Annotated[tuple[Rate, ...], msgspec.Meta(min_length=1, max_length=32)] | None = None
    rate: Rate | None = None  # where the search for rates begins
    requests: Annotated[int, msgspec.Meta(ge=4, le=1_000_000)] = 64  # at each rate
    arrivals: Arrivals = "poisson"
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)] = 0
    # a number, or [least, most]: two items are checked here, because msgspec 0.23 crashes on `tuple[Tokens, Tokens]`
    prompt_tokens: Tokens | tuple[Tokens, ...] = 128
    output_tokens: Tokens | tuple[Tokens, ...] = 64
    shared_prefix_tokens: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0  # that all prompts begin with
    trace: str | None = None
    most_tokens: Tokens | None = None  # of a prompt and its answer: a trace is sent without its rows that have more
    endpoint: Literal["chat", "completions", "generate"] = "chat"  # generate: Triton's
    model: str | None = None  # None: the server's first model
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    body: dict[str, bool | int | float | str] = {}  # further fields of each request, such as `ignore_eos`
    held_prompts: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    held_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 24


class TracedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load with the rows of its trace, if it has one."""

    load: Load
    path: str
    rows: tuple[TraceRow, ...] = ()
    num_left_out: int = 0  # rows of the trace, with more than `most_tokens`

    @property
    def natural_rate_per_s(self) -> float | None:
        """Return the mean rate of the trace; None without one, or if all its requests come at once."""
        if len(self.rows) < 2:
            return None
        span_s = self.rows[-1].at_s - self.rows[0].at_s
        return (len(self.rows) - 1) / span_s if span_s > 0 else None


def read_load(path: Path) -> TracedLoad:
    """Return the load. Raise InputError if the file has another form, or says too little to send anything."""
    if path.suffix in TRACE_SUFFIXES:
        return _with_trace(Load(), path, path)
    if path.suffix != ".toml":
        raise InputError(
            f"a load must be a .toml, .csv or .jsonl file, but got {path}", hint=f"describe it in a load.toml: {HINT}"
        )
    load = read_record(path, Load, hint=HINT)
    _check(path, load)
    if load.trace is not None:
        return _with_trace(load, path.parent / load.trace, path)
    return TracedLoad(load=load, path=str(path))


def _check(path: Path, load: Load) -> None:
    if load.rate is not None and load.rates is not None:
        raise InputError(f"`{path}` has both `rate` and `rates`", hint="keep one: `rate` is where a search begins")
    if load.rate is None and load.rates is None and load.trace is None:
        raise InputError(f"`{path}` has none of `rates`, `rate` and `trace`", hint=HINT)
    for name in ("prompt_tokens", "output_tokens"):
        bounds = getattr(load, name)
        if isinstance(bounds, tuple) and not (len(bounds) == 2 and bounds[0] <= bounds[1]):
            raise InputError(f"`{path}`: `{name}` must be a number or [least, most], but is {list(bounds)}", hint=HINT)
    if load.shared_prefix_tokens >= most(load.prompt_tokens):
        raise InputError(
            f"`{path}`: `shared_prefix_tokens` must be below `prompt_tokens`, but got {load.shared_prefix_tokens} and "
            f"{most(load.prompt_tokens)}"
        )


def most(tokens: int | tuple[int, ...]) -> int:
    """Return the upper bound of a length."""
    return tokens[-1] if isinstance(tokens, tuple) else tokens


def _with_trace(load: Load, trace: Path, path: Path) -> TracedLoad:
    rows = read_trace(trace)
    kept = tuple(row for row in rows if load.most_tokens is None or row.num_tokens <= load.most_tokens)
    if not kept:
        raise InputError(f"`{trace}` has no request of at most {load.most_tokens:,} tokens", hint="raise `most_tokens`")
    return TracedLoad(load=load, path=str(path), rows=kept, num_left_out=len(rows) - len(kept))
