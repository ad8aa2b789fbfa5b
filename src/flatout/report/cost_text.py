"""Chargeback, power caps and spot advice as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from flatout.records.chargeback import Chargeback, CostLine, TeamCost
from flatout.records.cost import Estimate
from flatout.records.power import CapAdvice, Ratio
from flatout.records.spot import SpotAdvice, StrategyResult
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent

MOST_TEAMS = 12
MOST_LEFT_OUT = 5
S_PER_H = 3600.0
_PROVENANCE = {
    "measured": "as measured or given",
    "vendor": "from sellers' list prices",
    "assumed": "partly from assumed factors",
    "predicted": "predicted",
}


def chargeback_text(result: Chargeback, *, style: TextStyle, next_command: str) -> str:
    """Return the lines of each team, their sum, budgets, and what was not read or is unknown."""
    total = result.total
    lines = [
        style.bold(f"{_hours(total.total.gpu_ms)} GPU-hours in {counted(total.num_attempts, 'attempt')}"),
        *style.wrapped(f"of {counted(total.num_jobs, 'job')}{when(result)}, prices: {result.terms}"),
        "",
    ]
    rows: list[list[str]] = []
    for team in result.teams[:MOST_TEAMS]:
        rows += team_rows(team)
    if len(result.teams) > MOST_TEAMS:
        rest = len(result.teams) - MOST_TEAMS
        rows.append([f"... {rest:,} more: --json", *[""] * 6])
    if len(result.teams) != 1:
        rows += team_rows(total, name="all")
    header = ["team / project", "", "GPU-hours", "", "USD", "kWh", "kg CO2"]
    if total.total.gpu_ms:
        lines += [*text_table(header, rows, style=style, flexible=[0, 4, 5]), ""]
    lines += [*_causes(total, style), *_budget_lines(result, style)]
    if total.total.gpu_ms:
        lines += basis_lines(result, style)
    lines += _unread(result, style)
    lines += ["", f"next: {style.clean(next_command)}"]
    return "\n".join(lines)


def team_rows(team: TeamCost, *, name: str | None = None) -> Iterator[list[str]]:
    """Yield the lines of a team: its name in the first, what the line is, GPU-hours, share, USD, kWh and kg of CO2."""
    name = _name(team) if name is None else name
    whole = team.total.gpu_ms
    is_measured = team.idle_held is not None
    shown: list[tuple[str, CostLine | None]] = []
    if is_measured:
        shown += [("used", team.used), ("idle-held", team.idle_held)]
    if team.unsplit.gpu_ms:
        shown.append(("used or idle-held", team.unsplit))
    if not is_measured:
        shown.append(("  of it idle-held", None))
    shown.append(("lost", team.lost))
    for place, (label, line) in enumerate(shown):
        first = name if place == 0 else ""
        if line is None:
            yield [first, label, "unknown", "", "", "", ""]
        else:
            share = percent(line.gpu_ms / whole) if whole else ""
            yield [
                first,
                label,
                _hours(line.gpu_ms),
                share,
                _amount(line.usd, has_range=True),
                _amount(line.kwh),
                _amount(line.kg_co2),
            ]


def _name(team: TeamCost) -> str:
    name = team.team or "(no account)"
    return f"{name} / {team.project}" if team.project is not None else name


def _hours(gpu_ms: int) -> str:
    return money(gpu_ms / 3.6e6)


def _amount(estimate: Estimate, *, has_range: bool = False) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "unknown"
    if not has_range or estimate.low == estimate.high:
        return money(estimate.value)
    return f"{money(estimate.value)} ({money(estimate.low)}-{money(estimate.high)})"


def money(value: float) -> str:
    """Format money with three digits, larger amounts as whole numbers or as `19.3 M`; the JSON has all digits."""
    if not value:
        return "0"
    magnitude = abs(value)
    if magnitude >= 999_500:
        return f"{value / 1e6:,.3g} M" if magnitude < 999_500_000 else f"{value / 1e6:,.0f} M"
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 1 else f"{value:.2g}"


def when(result: Chargeback) -> str:
    """Return the days of the jobs; "" if they are unknown."""
    if result.from_s is None or result.to_s is None:
        return ""
    first, last = (datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d") for time_s in (result.from_s, result.to_s))
    return f", {first} to {last}"


def _causes(total: TeamCost, style: TextStyle) -> list[str]:
    causes = sorted(total.lost_gpu_hours_by_cause.items(), key=lambda each: -each[1])
    if not causes:
        return []
    text = ", ".join(f"{cause} {_hours(round(hours * 3.6e6))}" for cause, hours in causes)
    return style.wrapped(f"lost GPU-hours by cause: {text}")


def _budget_lines(result: Chargeback, style: TextStyle) -> list[str]:
    return [line for text in budget_texts(result) for line in style.wrapped(text)]


def budget_texts(result: Chargeback) -> list[str]:
    """Return a sentence on each budget."""
    texts = []
    for one in result.budgets:
        spent = f"{_amount(one.spent_usd, has_range=True)} of {money(one.budget_usd)} USD"
        text = f"budget of {one.team}: {one.status}, {spent}"
        if one.expected_usd is not None:
            text += f", {money(one.expected_usd)} expected by the period's end"
        if one.status == "unknown":
            text += f": {one.spent_usd.reason}"
        texts.append(text)
    return texts


def basis_lines(result: Chargeback, style: TextStyle) -> list[str]:
    """Name the sources of the numbers, or say why they are unknown."""
    line = result.total.total
    lines = []
    for name, estimate in (("USD", line.usd), ("kWh", line.kwh), ("kg CO2", line.kg_co2)):
        if estimate.value is None:
            lines += style.wrapped(f"{name} unknown: {estimate.reason}")
        elif estimate.provenance is not None and estimate.low is not None and estimate.high is not None:
            span = f", {money(estimate.low)} to {money(estimate.high)} in total" if name != "USD" else ""
            lines += style.wrapped(f"{name}: {_PROVENANCE[estimate.provenance]}{span}")
    if line.electricity_usd.value is not None:
        lines += style.wrapped(f"electricity, included in rent: {_amount(line.electricity_usd, has_range=True)} USD")
    if result.measured_share is not None and result.measured_share < 1:
        measured = "no usage was measured"
        if result.measured_share:
            measured = f"usage was measured for {percent(result.measured_share)} of the time that was not lost"
        lines += style.wrapped(f"idle-held: {measured}; add a recording, or --usage FILE")
    return lines


def _unread(result: Chargeback, style: TextStyle) -> list[str]:
    lines = []
    if result.left_out:
        lines += ["", style.bold(f"{number(len(result.left_out))} of {number(result.num_rows)} rows were skipped")]
        for row in result.left_out[:MOST_LEFT_OUT]:
            lines += style.wrapped(row.reason, indent="  ", label=f"line {row.line}: ")
        if len(result.left_out) > MOST_LEFT_OUT:
            lines.append(f"  ... {len(result.left_out) - MOST_LEFT_OUT:,} more: --json lists all")
    for note in result.notes:
        lines += style.wrapped(note, label="note: ")
    return lines


def next_options(result: Chargeback) -> list[str]:
    """Return the option that would add most to the result."""
    if result.total.total.usd.value is None:
        return ["--gpu-type", "h100"]
    if result.total.idle_held is None:
        return ["--usage", "usage.csv"]
    return ["--json"]


def cap_text(result: CapAdvice, *, style: TextStyle) -> str:
    """Return a row per limit, compared with none, the knee, and whether it pays."""
    lines = [
        style.bold(f"Power caps against {result.no_cap_w:g} W"),
        *style.wrapped(
            f"{counted(result.num_configurations, 'configuration')} of {counted(result.num_workloads, 'workload')}; "
            "medians, and 95 % intervals over workloads"
        ),
        "",
    ]
    rows = [
        [
            f"{point.limit_w:g} W" + (" <- knee" if point.limit_w == result.knee_w else ""),
            number(point.num_configurations),
            _change(point.time),
            _change(point.energy),
            _change(point.owned) if point.owned is not None else "unknown",
        ]
        for point in result.points
    ]
    header = ["limit", "of", "time", "energy of the GPU", "owner's cost of a job"]
    lines += text_table(header, rows, style=style, flexible=[2, 3, 4])
    lines += ["", *style.wrapped(_pays(result))]
    if result.num_workloads == 1:
        lines += style.wrapped("Only one workload was measured: others can differ, and its interval has no width.")
    if result.num_left_out:
        lines += style.wrapped(
            f"{number(result.num_left_out)} configurations were not measured at {result.no_cap_w:g} W"
        )
    lines += ["", f"next: nvidia-smi --power-limit {result.knee_w:g}   (as root; if power is limited)"]
    return "\n".join(lines)


def _change(ratio: Ratio) -> str:
    if ratio.value == ratio.low == ratio.high == 1:
        return "-"
    return f"{ratio.value - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def _pays(result: CapAdvice) -> str:
    knee = next(point for point in result.points if point.limit_w == result.knee_w)
    text = (
        f"At the knee, {result.knee_w:g} W, a job takes {knee.time.value - 1:+.1%} time and"
        f" {knee.energy.value - 1:+.1%} energy: {1 / knee.energy.value - 1:+.0%} work from the same GPU power. If"
        " you rent, you pay for the time. "
    )
    if result.break_even_usd_per_gpu_hour is not None:
        text += (
            f"If you own the GPUs and pay {result.usd_per_kwh:g} USD per kWh, it saves money if a GPU-hour, without"
            f" electricity, costs less than {result.break_even_usd_per_gpu_hour:.3f} USD. "
        )
    if result.usd_per_gpu_hour is None:
        return text + "The price per GPU-hour is unknown: pass --gpu-price or --gpu-type."
    if result.cheapest_w == result.no_cap_w:
        return text + f"At {result.usd_per_gpu_hour:g} USD per hour no cap pays off."
    verdict = (
        "pays off" if result.pays else "is cheapest by the median, but its interval includes zero saving: undecided"
    )
    return text + f"At {result.usd_per_gpu_hour:g} USD per hour a cap of {result.cheapest_w:g} W {verdict}."


def spot_text(result: SpotAdvice, *, style: TextStyle) -> str:
    """Say how long spot lasts, what the strategies cost, when they finish, and which is advised."""
    there = result.availability
    lasts = (
        f"lost after {there.mean_time_to_loss_s / S_PER_H:.2f} h on average ({there.num_losses:,} losses)"
        if there.mean_time_to_loss_s is not None
        else "never lost"
    )
    if result.is_interval_youngs:
        source = "Young's, from the mean time to loss"
    elif there.mean_time_to_loss_s is None and result.checkpoint_interval_s >= result.work_s:
        source = "only at the end, because spot was never lost"
    else:
        source = "as given"
    lines = [
        style.bold(
            f"{result.work_s / S_PER_H:g} h of work on {_instances(result.num_instances)}, by {_h(result.deadline_s)}"
        ),
        *style.wrapped(
            f"spot instances were available {percent(there.share)} of the time, {lasts}, unavailable for at most"
            f" {_h(there.longest_gap_s)}"
        ),
        *style.wrapped(
            f"a checkpoint every {result.checkpoint_interval_s / 60:.1f} min ({source}), {result.checkpoint_cost_s:g} s"
            f" each; {result.restart_s:g} s per start; {result.spot_usd_per_h:g} against"
            f" {result.on_demand_usd_per_h:g} USD"
            " per instance-hour"
        ),
        "",
    ]
    rows = [_outcome_row(one) for one in result.outcomes]
    header = ["", "in time (95 %)", "USD", "p10 to p90", "finish p50", "p90", "p99", "losses"]
    lines += text_table(header, rows, style=style, flexible=[3])
    num_starts = result.outcomes[0].num_starts
    lines += style.wrapped(
        f"{num_starts} starts, evenly spaced; intervals are based on the {result.num_apart:,} that are at least a"
        " deadline apart"
    )
    advice = result.advice or "none of them"
    lines += ["", *style.wrapped(f"{result.why}", label=f"advice: {advice}: ")]
    lines += ["", "next: flatout submit --dry-run -- COMMAND"]
    return "\n".join(lines)


def _instances(num_instances: int) -> str:
    return "1 instance" if num_instances == 1 else f"{num_instances:,} instances"


def _outcome_row(outcome: StrategyResult) -> list[str]:
    finish = outcome.finish_s_quantiles
    low, high = outcome.met_share_interval
    return [
        outcome.strategy,
        f"{percent(outcome.met_share)} ({low * 100:.0f}-{high * 100:.0f})",
        money(outcome.cost_usd_mean),
        f"{money(outcome.cost_usd_quantiles['p10'])} to {money(outcome.cost_usd_quantiles['p90'])}",
        *(_h(found) if (found := finish[name]) is not None else "unfinished" for name in ("p50", "p90", "p99")),
        f"{outcome.losses_mean:.1f}",
    ]


def _h(value_s: float) -> str:
    return f"{value_s / S_PER_H:.1f} h"
