"""Write a replay as one self-contained HTML file: no script, no external reference, under 1 MB.

In: a `ReplayReport` and the command line. Out: a string: the policies side by side, the queue over time, allocated and
useful GPUs, and how full each node was. Texts from job histories are untrusted: the template escapes all of them, and
a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from flatout import __version__
from flatout.records.replay import PolicyReplay, ReplayReport
from flatout.report.command import command_line
from flatout.report.replay_text import MOST_TEAMS, duration, energy, load_text, money, speedup_text
from flatout.report.template import rendered
from flatout.units import number, percent

MOST_CHARTED = 8  # policies with curves and nodes
MOST_NODES = 64  # rows of the placement view
WIDTH, HEIGHT = 240, 60  # size of a curve's coordinate system
NUM_LEVELS = 5  # levels that show how full a node is


def replay_html(replay: ReplayReport, command: Sequence[str], *, next_command: str) -> str:
    """Return the page."""
    return rendered("replay.html.j2", page_content(replay, command, next_command))


def page_content(replay: ReplayReport, command: Sequence[str], next_command: str) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    first = replay.policies[0]
    real_policies = [policy for policy in replay.policies if not policy.is_oracle]
    best = min(real_policies or replay.policies, key=lambda policy: policy.jct_mean_s)
    charted = replay.policies[:MOST_CHARTED]
    most_queued = max(_most_queued(policy) for policy in charted) or 1.0
    longest = max(policy.makespan_s for policy in charted)
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "next_command": next_command,
        "facts": [
            replay.source,
            f"{number(first.num_jobs)} jobs",
            f"{number(replay.num_gpus)} GPUs on {number(replay.num_nodes)} nodes",
            f"{duration(replay.span_s)} of submissions",
            load_text(replay),
        ],
        "headline": _headline(replay, best),
        "best": best.policy,
        "best_jct": duration(best.jct_mean_s),
        "best_goodput": percent(best.goodput),
        "best_utilization": percent(best.utilization),
        "starved_after": duration(replay.starved_after_s),
        "rows": [_row(policy, replay) for policy in replay.policies],
        "differences": [
            {"policy": difference.policy, "text": speedup_text(difference), "verdict": difference.verdict}
            for difference in replay.differences
        ],
        "baseline": first.policy,
        "num_windows": replay.differences[0].num_windows if replay.differences else 0,
        "num_seeds": replay.differences[0].num_seeds if replay.differences else 0,
        "curves": [_curves(policy, replay.num_gpus, most_queued, longest) for policy in charted],
        "num_not_charted": len(replay.policies) - len(charted),
        "most_queued": number(float(round(most_queued))),
        "longest": duration(longest),
        "num_nodes_shown": min(MOST_NODES, replay.num_nodes),
        "num_nodes": replay.num_nodes,
        "sizes": [size.gpus for size in first.wait_by_size],
        "waits": [_waits(policy) for policy in replay.policies],
        "teams": _teams(best),
        "notes": _notes(replay),
        "width": WIDTH,
        "height": HEIGHT,
        "levels": range(NUM_LEVELS + 1),
    }


def _headline(replay: ReplayReport, best: PolicyReplay) -> str:
    first = replay.policies[0]
    if best is first:
        text = f"{first.policy}: jobs end {duration(first.jct_mean_s)} after submission on average"
        return text if len(replay.policies) == 1 else f"{text}, and no other policy is shorter"
    difference = next(each for each in replay.differences if each.policy == best.policy)
    text = f"Under {best.policy} jobs end after {duration(best.jct_mean_s)} on average, under {first.policy} after "
    return f"{text}{duration(first.jct_mean_s)}: {difference.ratio:.1f} times shorter, {difference.verdict}"


def _waits(policy: PolicyReplay) -> dict[str, object]:
    return {"policy": policy.policy, "values": [duration(size.mean_s) for size in policy.wait_by_size]}


def _notes(replay: ReplayReport) -> list[str]:
    notes = []
    for why, count in replay.left_out.items():
        noun = "job" if count == 1 else "jobs"
        notes.append(f"{count:,} {noun} skipped: {why}")
    notes += replay.assumptions
    for policy in replay.policies:
        notes += [f"{policy.policy}: {note}" for note in policy.notes]
    return notes


def _most_queued(policy: PolicyReplay) -> float:
    return max(policy.series.queued_jobs, default=0.0)


def _row(policy: PolicyReplay, replay: ReplayReport) -> dict[str, str]:
    longest = max(each.jct_mean_s for each in replay.policies) or 1.0
    lost = policy.lost_gpu_hours + policy.restart_gpu_hours
    return {
        "policy": policy.policy,
        "summary": policy.summary,
        "bar": f"{policy.jct_mean_s / longest * 100:.1f}",
        "mean": duration(policy.jct_mean_s),
        "p50": duration(policy.jct_p50_s),
        "p99": duration(policy.jct_p99_s),
        "wait": duration(policy.wait_mean_s),
        "longest": duration(policy.longest_wait_s),
        "starved": number(policy.num_starved),
        "utilization": percent(policy.utilization),
        "goodput": percent(policy.goodput),
        "free": percent(policy.fragmentation),
        "lost": f"{number(float(round(lost)))} GPUh",
        "preemptions": number(policy.preemptions),
        "makespan": duration(policy.makespan_s),
        "rho": number(policy.fairness_p99),
        "energy": energy(policy.energy_kwh),
        "money": money(policy.dollars),
    }


def _curves(policy: PolicyReplay, num_gpus: int, most_queued: float, longest_s: float) -> dict[str, object]:
    """Return the paths of the curves, on one time axis for all policies."""
    series = policy.series
    scale = WIDTH / len(series.allocated) * policy.makespan_s / longest_s if series.allocated else 1.0
    queue = [value / most_queued for value in series.queued_jobs]
    allocated = [value / num_gpus for value in series.allocated]
    useful = [value / num_gpus for value in series.useful]
    return {
        "policy": policy.policy,
        "queue": area(queue, scale),
        "allocated": area(allocated, scale),
        "useful": area(useful, scale),
        "most": number(float(round(_most_queued(policy)))),
        "utilization": percent(policy.utilization),
        "goodput": percent(policy.goodput),
        "nodes": node_paths(series.node_samples, policy.makespan_s / longest_s),
    }


def area(values: Sequence[float], step: float) -> str:
    """Return the path of the area under a step curve; values are shares of the height."""
    if not values:
        return ""
    words, last = [f"M0 {HEIGHT}"], -1
    for index, value in enumerate(values):
        y = round(HEIGHT * (1 - min(1.0, max(0.0, value))))
        if y != last:
            words.append(f"H{index * step:.1f}V{y}")
            last = y
    words.append(f"H{len(values) * step:.1f}V{HEIGHT}Z")
    return "".join(words)


def node_paths(samples: Sequence[Sequence[float]], stretch: float) -> list[dict[str, object]]:
    """Return the cells of nodes (rows) by time (columns) for each level of use; equal neighbours are merged."""
    if not samples or not samples[0]:
        return []
    nodes = min(MOST_NODES, len(samples[0]))
    most = max(1e-9, *(sample[node] for sample in samples for node in range(nodes)))
    words: list[list[str]] = [[] for _ in range(NUM_LEVELS + 1)]
    width = stretch * WIDTH / len(samples)
    for node in range(nodes):
        levels = [_level(sample[node] / most) for sample in samples]
        start = 0
        for level, equal in groupby(levels):
            end = start + len(list(equal))
            if level > 0:
                length = (end - start) * width
                words[level].append(f"M{start * width:.1f} {node}h{length:.1f}v1h-{length:.1f}z")
            start = end
    return [{"level": level, "path": "".join(each)} for level, each in enumerate(words) if each]


def _level(share: float) -> int:
    return 0 if share <= 0 else max(1, min(NUM_LEVELS, round(share * NUM_LEVELS)))


def _teams(policy: PolicyReplay) -> list[dict[str, str]]:
    ranked = sorted(policy.teams, key=lambda team: (-team.useful_gpu_hours, team.team))
    if len(ranked) < 2:
        return []
    return [
        {
            "team": team.team or "(none)",
            "jobs": number(team.num_jobs),
            "useful": number(float(round(team.useful_gpu_hours))),
            "idle": number(float(round(team.idle_gpu_hours))),
            "lost": number(float(round(team.lost_gpu_hours))),
            "jct": duration(team.jct_mean_s),
            "money": money(team.dollars),
        }
        for team in ranked[: 2 * MOST_TEAMS]
    ]
