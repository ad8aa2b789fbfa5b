"""Make the result of a tuning from what the loop found: curves with intervals, commands with secrets masked.

In: a `Found`, the plan, the server's command. Out: a `ServingTuning`. It formats nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec

from flatout.records.serving import (
    CurvePoint,
    LoadCurve,
    LoadPoint,
    ServerTrial,
    ServingTuning,
    UnofferedKnob,
)
from flatout.records.trial import BASELINE
from flatout.secrets import masked_command, masked_environment
from flatout.serving.answers import noise_agreement
from flatout.serving.candidates import ServerMachine, refusal
from flatout.serving.engine import Engine
from flatout.serving.loop import Found, ServingOptions
from flatout.serving.trial import ServerTrialSetup
from flatout.serving.words import ServerCommand, changed
from flatout.verdict.student import t_quantile

CURVE_LEVEL = 0.05


def tuning_result(
    found: Found,
    plan: ServerTrialSetup,
    options: ServingOptions,
    command: ServerCommand,
    *,
    machine: ServerMachine,
    unoffered: Sequence[UnofferedKnob] = (),
    notes: Sequence[str] = (),
    took_s: float,
) -> ServingTuning:
    """Return the result."""
    tuned = changed(command, found.adopted)
    load = plan.traced.load
    untouched = [trial for trial in found.trials if trial.arm == BASELINE and trial.is_complete]
    arms = [BASELINE] if found.adopted_arm == BASELINE else [BASELINE, found.adopted_arm]
    return ServingTuning(
        engine=plan.engine.name,
        server_command=tuple(masked_command(command.words)),
        objective=options.objective,
        slo=plan.limits,
        load=plan.traced.path,
        seed=load.seed,
        rates_per_s=plan.rates_per_s,
        num_requests=load.requests,
        num_trials=len(found.trials),
        num_held_prompts=load.held_prompts,
        noise_agreement=noise_agreement(untouched) if len(untouched) > 1 else None,
        causes=found.causes,
        causes_left=found.causes_left,
        adopted=found.adopted,
        verdict=found.verdict,
        tried=found.tried,
        curves=tuple(load_curve(found.trials, arm) for arm in arms),
        unoffered=(*unoffered, *_refused(plan.engine, command, machine, options, found)),
        ended_by=found.ended_by,
        took_s=took_s,
        order=_order(found.trials),
        launch=tuple(masked_command(tuned.words)),
        environment=masked_environment(tuned.environment),
        notes=(*notes, *_notes(found, plan)),
        trials=found.trials,
    )


def _refused(
    engine: Engine, command: ServerCommand, machine: ServerMachine, options: ServingOptions, found: Found
) -> tuple[UnofferedKnob, ...]:
    """Return the knobs that no round tried, because of the command, the machine or the options."""
    tried = {change.knob for arm in found.tried for change in arm.changes}
    rows = [row for row in engine.knob if row.name not in tried]
    reasons = ((row.name, refusal(row, command, machine, options.allowed)) for row in rows)
    return tuple(UnofferedKnob(knob=name, reason=reason) for name, reason in reasons if reason is not None)


def _order(trials: Sequence[ServerTrial]) -> str:
    """Return the arms in running order as letters: A is the untouched server, then B, C, ... by their first trials."""
    arms = list(dict.fromkeys([BASELINE, *(trial.arm for trial in trials)]))
    return " ".join(_letter(arms.index(trial.arm)) for trial in trials)


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else f"Z{place - 25}"


def load_curve(trials: Sequence[ServerTrial], arm: str) -> LoadCurve:
    """Return an arm's goodput at each rate, with the interval of its mean over trials."""
    own = [trial for trial in trials if trial.arm == arm and trial.is_complete]
    by_rate: dict[float, list[LoadPoint]] = {}
    for trial in own:
        for point in trial.points:
            by_rate.setdefault(point.rate_per_s, []).append(point)
    return LoadCurve(arm=arm, points=tuple(_curve_point(rate, by_rate[rate]) for rate in sorted(by_rate)))


def _curve_point(rate: float, points: Sequence[LoadPoint]) -> CurvePoint:
    goodputs = [point.goodput_per_s for point in points]
    return CurvePoint(
        rate_per_s=rate,
        num_trials=len(points),
        goodput_per_s=fmean(goodputs),
        goodput_interval=_interval(goodputs),
        tokens_per_s=fmean(point.tokens_per_s for point in points),
        ttft_p99_s=_median([point.ttft.p99_s for point in points if point.ttft is not None]),
        itl_p99_s=_median([point.itl.p99_s for point in points if point.itl is not None]),
        within_share=fmean(point.is_within for point in points),
    )


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    half = t_quantile(CURVE_LEVEL / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return max(fmean(values) - half, 0.0), fmean(values) + half


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _notes(found: Found, plan: ServerTrialSetup) -> list[str]:
    notes = []
    if plan.traced.num_left_out:
        notes.append(
            f"{plan.traced.num_left_out:,} rows of the trace have more than {plan.traced.load.most_tokens:,} tokens, "
            "and are not sent"
        )
    unsettled = [trial.index for trial in found.trials if trial.is_complete and not trial.is_settled]
    if unsettled:
        notes.append(
            f"the warm-up of {len(unsettled)} of {len(found.trials)} trials ended before latencies were steady"
        )
    late_s = max((p.latest_sent_s for trial in found.trials for p in trial.points), default=0.0)
    if late_s > 0.05:
        notes.append(f"a request was sent {late_s:.2f} s late: the delay counts as the server's")
    last = [trial for trial in found.trials if trial.arm == found.adopted_arm and trial.is_complete]
    if last and last[-1].points[-1].is_within:
        notes.append(
            f"the server was within the limits at the highest rate, {plan.rates_per_s[-1]:.3g} requests/s: more may be "
            "possible, which higher `rates` would show"
        )
    return notes


def without_trials(tuning: ServingTuning) -> ServingTuning:
    """Return the result without its single trials."""
    return msgspec.structs.replace(tuning, trials=())
