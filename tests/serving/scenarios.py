"""Servers with one planted cause each, on the simulated engine: what is slow, and which knob is right."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from tests.serving.simulated import table, tuned

from flatout.serving.engine import KnobRow
from flatout.serving.loop import Found, ServingOptions

TRAPS = ("fast-math", "short-answers", "refuse-late")


@dataclass(frozen=True)
class Scenario:
    """A server whose cause and knob are known."""

    cause: str
    change: str
    words: tuple[str, ...]
    rates: tuple[float, ...]
    load: dict[str, object] = field(default_factory=dict)
    slo: str = "p99 ttft<500ms, p99 itl<60ms"


_SHORT: dict[str, object] = {"requests": 64, "prompt_tokens": 64, "output_tokens": 32}
SCENARIOS = (
    Scenario("under-batched", "max-num-seqs=16", ("--max-num-seqs", "4"), (10, 20, 40), _SHORT),
    Scenario(
        "queueing",
        "max-num-batched-tokens=256",
        ("--max-num-batched-tokens", "32"),
        (10, 20, 40),
        {"requests": 64, "prompt_tokens": 256, "output_tokens": 8},
    ),
    Scenario(
        "prefill-stalls-decode",
        "max-num-batched-tokens=256",
        ("--max-num-batched-tokens", "2048", "--per-prompt-token-s", "0.00005"),
        (2, 4, 6),
        {"requests": 64, "prompt_tokens": (200, 2000), "output_tokens": 48},
        slo="p99 ttft<2s, p99 itl<40ms",
    ),
    Scenario(
        "kv-cache-full",
        "kv-tokens=4000",
        ("--kv-tokens", "1000"),
        (10, 20, 40),
        {"requests": 64, "prompt_tokens": 128, "output_tokens": 64},
    ),
    Scenario("eager-mode", "without-enforce-eager", ("--enforce-eager",), (10, 20, 40), _SHORT, slo="p99 itl<12ms"),
    Scenario(
        "no-prefix-reuse",
        "without-no-enable-prefix-caching",
        ("--no-enable-prefix-caching", "--per-prompt-token-s", "0.0001", "--max-num-batched-tokens", "128"),
        (10, 20, 30),
        {"requests": 64, "prompt_tokens": 512, "shared_prefix_tokens": 448, "output_tokens": 16},
    ),
    Scenario("host-bound", "api-server-count=4", ("--host-s", "0.04"), (10, 20, 40), _SHORT),
)


def without_effect(seed: int, max_trials: int = 16) -> Found:
    """Tune a server whose batch is too small, with three knobs that do nothing; 6 trials are a short budget."""
    knob = KnobRow(
        name="log-level",
        option="--log-level",
        answers=("under-batched",),
        safety="exact",
        values=("info", "debug", "error"),
        doc="",
        source="tests",
    )
    engine = msgspec.structs.replace(table(), knob=(knob,))
    return tuned(
        ("--max-num-seqs", "2"),
        seed=seed,
        rates=(40,),
        engine=engine,
        options=ServingOptions(budget_s=1e9, max_trials=max_trials),
        requests=48,
        prompt_tokens=16,
        output_tokens=16,
        slo="p99 ttft<120ms",
        held_prompts=2,
        held_tokens=8,
    )
