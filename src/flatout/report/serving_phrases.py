"""The sentences about the tuning of a server that text and HTML share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from flatout.records.serving import Cause, CurvePoint, LatencyLimit, ServingTuning, TriedArm, TuningEndedBy
from flatout.records.verdict import Verdict
from flatout.report.phrases import counted
from flatout.units import percent, seconds

OBJECTIVE_WORDS = {
    "goodput": "good requests per second at the best rate",
    "tokens/s": "tokens per second at the best rate",
    "energy": "energy per token",
}
ENDED_WORDS: dict[TuningEndedBy, str] = {
    "within_limits": "the server is within the limits at every rate, so nothing is left to gain",
    "no_cause": "no cause of slow requests is left that costs 5 % of the latency",
    "no_knob": "no knob of this server answers its causes",
    "all_tried": "every knob that answers the causes was tried",
    "budget": "the time limit was reached",
    "trials": "the maximum number of trials was reached",
    "interrupted": "the tuning was interrupted",
}


def headline(tuning: ServingTuning) -> str:
    """Return what was found, in one sentence."""
    if not tuning.adopted:
        return f"no change was shown to make the server better: {ENDED_WORDS[tuning.ended_by]}"
    names = " and ".join(change.name for change in tuning.adopted)
    if tuning.verdict is None or tuning.verdict.verdict != "better":
        return f"{names} made the server better step by step; together they are undecided"
    return f"{names}: {verdict_words(tuning.verdict)}, in {OBJECTIVE_WORDS[tuning.objective]}"


def verdict_words(verdict: Verdict) -> str:
    """Return a verdict with its ratio, interval, and the trials behind it."""
    if verdict.speedup is None or verdict.interval is None:
        return f"{verdict.verdict}: {verdict.reason}"
    low, high = verdict.interval
    trials = f"{counted(verdict.num_candidates, 'trial')} against {verdict.num_baselines}"
    return (
        f"{verdict.verdict}, {verdict.speedup:.2f}x ({low:.2f} to {high:.2f}, {trials}, in the order {verdict.order})"
    )


def slo_words(limits: Sequence[LatencyLimit]) -> str:
    return ", ".join(f"p{limit.percentile:g} {limit.metric} < {seconds(limit.most_s)}" for limit in limits)


def cause_words(cause: Cause) -> str:
    share = "its share of the latency is unknown" if cause.share is None else f"{percent(cause.share)} of the latency"
    return f"{cause.title} ({share})"


def facts(tuning: ServingTuning) -> list[str]:
    """Return the conditions of the result, a sentence each."""
    rates = ", ".join(f"{rate:.3g}" for rate in tuning.rates_per_s)
    lines = [
        f"{tuning.engine} server: {shlex.join(tuning.server_command)}",
        f"limits: {slo_words(tuning.slo)}",
        f"load: {tuning.load}, seed {tuning.seed}; {tuning.num_requests} requests at each of {rates} requests/s, "
        "sent when they are due",
        f"{counted(tuning.num_trials, 'start')} of the server in {seconds(tuning.took_s)}, in the order "
        f"{tuning.order} (A: untouched)",
    ]
    if tuning.noise_agreement is None:
        lines.append("answers: the untouched server was started once, so no change was compared with it")
    else:
        lines.append(
            f"answers: {tuning.num_held_prompts} held prompts; untouched starts agree in "
            f"{percent(tuning.noise_agreement)} of the tokens"
        )
    return lines


def tried_result(arm: TriedArm) -> str:
    """Return what was found about a set of changes."""
    if arm.problem:
        return f"did not run: {arm.problem}"
    if arm.gate.outcome == "failed":
        return f"unsafe: {arm.gate.reason}"
    if arm.gate.outcome == "unknown":
        return f"not judged: {arm.gate.reason}"
    if arm.verdict is not None:
        return verdict_words(arm.verdict)
    if arm.screened is None:
        return "not compared"
    return f"one trial, {arm.screened:.2f}x: not compared further"


def curve_cells(point: CurvePoint) -> tuple[str, ...]:
    """Return the cells of a row of the load curve."""
    goodput = f"{point.goodput_per_s:.3g}"
    if point.goodput_interval is not None:
        low, high = point.goodput_interval
        goodput += f" ({low:.3g} to {high:.3g})"
    return (
        f"{point.rate_per_s:.3g}",
        goodput,
        f"{point.tokens_per_s:,.0f}",
        "unknown" if point.ttft_p99_s is None else seconds(point.ttft_p99_s),
        "unknown" if point.itl_p99_s is None else seconds(point.itl_p99_s),
        f"{point.within_share * point.num_trials:.0f} of {point.num_trials}",
    )


CURVE_HEADER = ("requests/s", "good/s (95 %)", "tokens/s", "p99 ttft", "p99 itl", "within")
