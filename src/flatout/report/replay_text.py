"""A replay as text for a terminal: the policies side by side, what differs, and what was assumed."""

from __future__ import annotations

from flatout.records.replay import PolicyDifference, PolicyReplay, ReplayReport
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent

MOST_TEAMS = 8
MEASURES = {"jct_p99": "JCT p99", "wait_mean": "wait", "goodput": "goodput", "lost": "lost"}


def duration(value_s: float) -> str:
    """Return a long time in the unit that suits it: `45 s`, `12 min`, `6.9 h`, `14 days`."""
    if value_s < 99.5:
        return f"{value_s:.0f} s"
    if value_s < 5970:
        return f"{value_s / 60:.0f} min"
    if value_s < 99.95 * 3600:
        return f"{value_s / 3600:.1f} h"
    return f"{value_s / 3600:,.0f} h" if value_s < 9_999 * 3600 else f"{value_s / 86_400:,.0f} days"


def load_text(replay: ReplayReport) -> str:
    return "all at once" if replay.load is None else f"load {percent(replay.load)}"


def replay_text(replay: ReplayReport, *, style: TextStyle, next_command: str) -> str:
    first = replay.policies[0]
    lines = [
        style.bold(
            style.clean(f"{replay.source}: {counted(first.num_jobs, 'job')} on {counted(replay.num_gpus, 'GPU')}")
        ),
        *style.wrapped(
            f"{counted(replay.num_nodes, 'node')}, {duration(replay.span_s)} of submissions, {load_text(replay)}"
        ),
        "",
    ]
    lines += text_table(
        ["policy", "JCT mean", "p50", "p99", "wait", "longest", "starved"],
        [_times(policy) for policy in replay.policies],
        style=style,
        flexible=[0],
    )
    lines.append("")
    lines += text_table(
        ["policy", "allocated", "goodput", "free*", "lost", "stops", "makespan", "rho p99"],
        [_use(policy) for policy in replay.policies],
        style=style,
        flexible=[0],
    )
    lines += _spent(replay, style)
    lines += style.wrapped(
        "JCT: from submission to the end. Longest: uninterrupted wait. Starved: jobs that waited uninterrupted for "
        f"more than {duration(replay.starved_after_s)}. Goodput: share of all GPU time in work that was kept. "
        "Free*: GPUs free while a job waits. Lost: work done again, and restarts. Stops: jobs stopped by the policy. "
        "Rho: completion time divided by the completion time with a fair share."
    )
    if replay.differences:
        lines += ["", style.bold(f"Mean JCT against {style.clean(first.policy)}")]
        for one in replay.differences:
            lines += style.wrapped(
                f"{speedup_text(one)}, {one.verdict}",
                indent="  ",
                label=f"{one.policy:14s}",
            )
        one = replay.differences[0]
        seeds = f"{one.num_seeds} seeds and " if one.num_seeds > 1 else ""
        lines += ["", *_measures(replay, style)]
        lines += style.wrapped(
            f"95 % intervals over {seeds}{one.num_windows} windows of the history. Goodput: from the first to the last "
            "submission, by time window; all others by the window of the submission. Lost: includes restarts."
        )
    lines += _waits(replay, style)
    lines += _teams(replay.policies[-1], style)
    lines += ["", style.bold("Notes")]
    notes = [f"{policy.policy}: {note}" for policy in replay.policies for note in policy.notes]
    notes += [f"{each.policy}: {number(each.failures)} node failures" for each in replay.policies if each.failures]
    left_out = [f"{count:,} {'job' if count == 1 else 'jobs'} skipped: {why}" for why, count in replay.left_out.items()]
    for text in (*left_out, *replay.assumptions, *notes):
        lines += style.wrapped(text, indent="  ", label="- ")
    if next_command:
        lines += ["", f"next: {style.clean(next_command)}"]
    return "\n".join(lines)


def speedup_text(difference: PolicyDifference) -> str:
    """Return the ratio of the mean completion times; below 1 the policy is slower than the first."""
    if difference.low is None or difference.high is None:
        interval = "no interval"
    else:
        interval = f"{difference.low:.2f} to {difference.high:.2f}"
    return f"speedup {difference.ratio:.2f}x ({interval})"


def _measures(replay: ReplayReport, style: TextStyle) -> list[str]:
    """Return the measures except the mean JCT, which is printed above, and why some have no interval."""
    rows: list[list[str]] = []
    reasons: dict[str, None] = {}  # each reason once, in order
    for one in replay.differences:
        for each in one.measures[1:]:
            interval = "unknown"
            if each.low is not None and each.high is not None:
                interval = f"{_amount(each.unit, each.low)} to {_amount(each.unit, each.high)}"
            elif each.reason:
                reasons[f"{MEASURES[each.measure]}: {each.reason}."] = None
            value = "unknown" if each.value is None else _change(each.unit, each.value)
            rows.append([one.policy, MEASURES[each.measure], value, interval])
    header = ["policy", f"against {replay.policies[0].policy}", "difference", "95 % interval"]
    lines = list(text_table(header, rows, style=style, flexible=[0])) if rows else []
    for reason in reasons:
        lines += style.wrapped(reason)
    return lines


def _change(unit: str, value: float) -> str:
    return f"speedup {value:.2f}x" if unit == "ratio" else _amount(unit, value)


def _amount(unit: str, value: float) -> str:
    """Return the value with its unit; a ratio has no unit, so that it can be an end of an interval."""
    if unit == "ratio":
        return f"{value:.2f}"
    sign = "-" if value < 0 else "+"
    if unit == "s":
        return sign + duration(abs(value))
    if unit == "share":
        return f"{sign}{abs(value) * 100:.2f} points"
    return f"{sign}{number(float(round(abs(value))))} GPUh"


def _times(policy: PolicyReplay) -> list[str]:
    values = (policy.jct_mean_s, policy.jct_p50_s, policy.jct_p99_s, policy.wait_mean_s, policy.longest_wait_s)
    return [policy.policy, *map(duration, values), number(policy.num_starved)]


def _use(policy: PolicyReplay) -> list[str]:
    lost = policy.lost_gpu_hours + policy.restart_gpu_hours
    return [
        policy.policy,
        percent(policy.utilization),
        percent(policy.goodput),
        percent(policy.fragmentation),
        f"{number(float(round(lost)))} GPUh",
        number(policy.preemptions),
        duration(policy.makespan_s),
        number(policy.fairness_p99),
    ]


def money(dollars: float | None) -> str:
    return "unknown" if dollars is None else f"${number(float(round(dollars)))}"


def energy(kwh: float | None) -> str:
    return "unknown" if kwh is None else f"{number(float(round(kwh)))} kWh"


def _spent(replay: ReplayReport, style: TextStyle) -> list[str]:
    """Return energy and money, if the cluster file has power and prices."""
    if all(policy.energy_kwh is None and policy.dollars is None for policy in replay.policies):
        return []
    rows = [[policy.policy, energy(policy.energy_kwh), money(policy.dollars)] for policy in replay.policies]
    return ["", *text_table(["policy", "energy", "money"], rows, style=style, flexible=[0]), ""]


def _waits(replay: ReplayReport, style: TextStyle) -> list[str]:
    sizes = [size.gpus for size in replay.policies[0].wait_by_size]
    rows = [[policy.policy, *(duration(size.mean_s) for size in policy.wait_by_size)] for policy in replay.policies]
    title = style.bold("Mean wait by the number of GPUs")
    return ["", title, *text_table(["policy", *sizes], rows, style=style, flexible=[0])]


def _teams(policy: PolicyReplay, style: TextStyle) -> list[str]:
    if len(policy.teams) < 2:
        return []
    ranked = sorted(policy.teams, key=lambda team: (-team.useful_gpu_hours, team.team))
    rows = []
    for team in ranked[:MOST_TEAMS]:
        used = [team.useful_gpu_hours, team.idle_gpu_hours, team.lost_gpu_hours]
        hours = [number(float(round(value))) for value in used]
        rows.append(
            [team.team or "(none)", number(team.num_jobs), *hours, duration(team.jct_mean_s), money(team.dollars)]
        )
    more = len(ranked) - MOST_TEAMS
    header = ["team", "jobs", "useful GPUh", "idle", "lost", "JCT mean", "money"]
    lines = [
        "",
        style.bold(style.clean(f"Teams under {policy.policy}")),
        *text_table(header, rows, style=style, flexible=[0]),
    ]
    return [*lines, *([f"and {more} more, in the JSON"] if more > 0 else [])]
