"""Word the result of a comparison. In: a `Comparison` or a part of one. Out: sentences without a line break.

B's cost is shown relative to A's: `+3.1 %` is slower, `-3.1 %` is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.records.comparison import (
    Arm,
    Comparison,
    ComparisonGate,
    EndedBy,
    EnvironmentDifference,
    PartDifference,
    Power,
)
from flatout.report.parts import PART_LABELS
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import percent, seconds

_LABELS: Mapping[str, str] = {
    **PART_LABELS,
    "garbage_collection": "garbage collection",
    "rest_of_step": "rest of the step",
    "regular_step": "regular step",
}
_COSTS = {
    "step_s": "time per step",
    "s_per_sample": "time per sample",
    "s_per_token": "time per token",
    "peak_memory_bytes": "peak memory",
    "j_per_sample": "energy per sample",
    "j_per_step": "energy per step",
}
_MOST_SHOWN = 10.0
_TIMES = ("step_s", "s_per_sample", "s_per_token")
_ENDED: Mapping[EndedBy, str] = {
    "decided": "the question was decided",
    "hopeless": "more trials were unlikely to decide it",
    "time_budget": "the time budget was used up",
    "trial_budget": "the maximum number of trials was reached",
    "last_analysis": "the last interim analysis was reached",
    "interrupted": "it was interrupted",
}


def part_label(part: str) -> str:
    return _LABELS.get(part, part.replace("_", " "))


def signed_percent(share: float) -> str:
    """Return a relative change with its sign: `+3.1 %`; beyond tenfold the number says nothing more."""
    if share > _MOST_SHOWN:
        return f"over +{percent(_MOST_SHOWN)}"
    return f"{'+' if share >= 0 else '-'}{percent(abs(share))}"


def signed_seconds(value_s: float) -> str:
    return f"{'+' if value_s > 0 else ''}{seconds(value_s)}"


def cost_name(result: Comparison) -> str:
    return _COSTS[result.objective]


def interval_text(result: Comparison) -> str:
    """Return the interval of B's relative cost: `+1.2 % to +4.0 %`; empty before the first analysis."""
    interval = result.verdict.interval
    if interval is None:
        return ""
    low, high = interval
    return f"{signed_percent(1 / high - 1)} to {signed_percent(1 / low - 1)}"


def headline(result: Comparison) -> str:
    """Say whether B is better or worse, by how much, and with which interval."""
    verdict = result.verdict
    of_time = result.objective in _TIMES
    cost = cost_name(result)
    if verdict.interval is None or verdict.speedup is None:
        return f"undecided: {verdict.reason}"
    change = f"{signed_percent(1 / verdict.speedup - 1)} {cost} ({interval_text(result)})"
    if verdict.verdict == "better":
        return f"B is {'faster' if of_time else 'better'} than A: {change}"
    if verdict.verdict == "worse":
        return f"B is {'slower' if of_time else 'worse'} than A: {change}"
    if verdict.verdict == "equivalent":
        return f"A and B are equivalent within {percent(result.equivalent_within or verdict.min_effect)}: {change}"
    return f"undecided: B's {cost} differs from A's by {interval_text(result)}; {verdict.reason}"


def gate_sentence(gate: ComparisonGate) -> str:
    """Say whether B is slower than the gate allows."""
    limit = percent(gate.limit)
    interval = ""
    if gate.slowdown is not None:
        interval = f" ({signed_percent(gate.slowdown[0])} to {signed_percent(gate.slowdown[1])})"
    if gate.outcome == "failed":
        return f"The gate fails: B is shown to be worse by more than {limit}{interval}."
    if gate.outcome == "passed":
        return f"The gate passes: B is not worse by {limit} or more{interval}."
    return f"The gate is undecided: B may be worse by more than {limit}, or not{interval}."


def prior_power_sentence(
    trials_by_noise: Mapping[float, int | None], effect: float, gate: float | None, num_first: int
) -> str:
    """Say before the first trial in how many trials a slowdown is found, by the noise that the job may have."""
    beyond = f", as worse by more than the gate of {percent(gate)}," if gate is not None else ""
    counts = [
        f"{needed if needed is not None else 'no number of'} trials at {percent(noise)}"
        for noise, needed in trials_by_noise.items()
    ]
    return (
        f"finds a slowdown of {percent(effect)}{beyond} in {', '.join(counts)} run-to-run standard deviation (80 %"
        f" power); the first {num_first} trials measure which it is"
    )


def power_sentence(power: Power, gate: float | None) -> str:
    """State what the comparison can find, and in how many trials."""
    noise = f"run-to-run standard deviation {percent(power.run_sd)}, {seconds(power.trial_s)} per trial"
    beyond = f", as worse by more than the gate of {percent(gate)}," if gate is not None else ""
    if power.num_trials is None:
        finds = f"a slowdown of {percent(power.effect)} is not found{beyond} in any number of trials"
    else:
        finds = f"finds a slowdown of {percent(power.effect)}{beyond} in {power.num_trials} trials"
        finds += f" (80 % power, about {seconds(power.num_trials * power.trial_s)})"
    return f"{noise}: {finds}; {_affordable(power)}"


def _affordable(power: Power) -> str:
    allowed = f"the budget allows {power.num_affordable} trials"
    if power.detectable is None:
        return f"{allowed}, which find no slowdown below 100 %"
    return f"{allowed}, which find {percent(power.detectable)}"


def trials_sentence(result: Comparison) -> str:
    """Say how many trials the result rests on, in which order they ran, and why no more were run."""
    sentence = (
        f"{counted(result.a.num_trials, 'trial')} of A and {result.b.num_trials} of B, in the order"
        f" {_order(result.verdict.order)}; {_ENDED[result.ended_by]}."
    )
    if result.num_failed:
        sentence += f" {counted(result.num_failed, 'more trial')} did not complete."
    return sentence


def _order(order: str) -> str:
    letters = order.replace(" ", "")
    return f"{letters[:8]}..." if len(letters) > 8 else letters


def no_profile_note() -> str:
    """Say why the rest of the step is not divided, and how it can be."""
    return (
        "the trials left no time for profiles, so where the difference is comes from the step logs alone: the same"
        " command with this --out and a larger --budget adds profiles to these trials"
    )


def cause_sentence(result: Comparison) -> str:
    """Name the part that explains most of the difference, with its interval."""
    part = next((part for part in result.parts if part.part == result.cause), None)
    if part is None:
        return "No part of the step is shown to differ."
    where = "per step" if part.source == "steps" else "per traced step"
    return f"Most of the difference is {part_label(part.part)}: {change_text(part)} {where}.{_call_sentence(result)}"


def calls_text(count: float) -> str:
    """Return a mean number of calls: whole where it is large."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _call_sentence(result: Comparison) -> str:
    """Name the call that a step of B makes more or less often, if there is one; the one whose time changes most."""
    call = next((call for call in result.calls if abs(call.b_calls - call.a_calls) >= 1), None)
    if call is None:
        return ""
    return f" Calls of {call.name} per step: {calls_text(call.a_calls)} in A, {calls_text(call.b_calls)} in B."


def change_text(part: PartDifference) -> str:
    """Return the change of a part with its interval: `+11 ms (9 to 13 ms)`."""
    if part.interval_s is None:
        return signed_seconds(part.change_s)
    low_s, high_s = part.interval_s
    return f"{signed_seconds(part.change_s)} ({signed_seconds(low_s)} to {signed_seconds(high_s)})"


def arm_text(arm: Arm) -> str:
    """Return what an arm ran: its commit or environment, and the command."""
    facts = []
    if arm.ref is not None:
        facts.append(f"{arm.ref} ({(arm.commit or '')[:10]})")
    if arm.python is not None:
        facts.append(arm.python)
    return ", ".join(facts)


def environment_lines(differences: Sequence[EnvironmentDifference], style: TextStyle) -> list[str]:
    """Return a table of what else differs between A and B; empty if nothing is known to."""
    if not differences:
        return []
    cells = [[difference.name, difference.a, difference.b] for difference in differences]
    return text_table(("what else differs", "A", "B"), cells, style=style, flexible=(0, 1, 2))
