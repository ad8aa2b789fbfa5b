"""The alerts, one row each. Out: rows, and Prometheus' rule group of them.

Each alert holds for some minutes, so that one scrape does not raise it. `page`: somebody has to act now. `ticket`:
within days. `info`: nobody is called. The last alert always fires: if it stops, the alerting itself is broken.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.watch.emit.recording_rules import JOB, with_host

Severity = Literal["page", "ticket", "info"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    expression: str
    holds_for: str
    severity: Severity
    summary: str  # labels as {{ $labels.x }}
    next_step: str


_OF_JOB = "{{ $labels.job }} ({{ $labels.job_id }})"
_OF_GPU = "GPU {{ $labels.gpu }} on {{ $labels.host }}"
ALERTS = (
    Alert(
        name="FlatoutExporterDown",
        expression='up{job="flatout"} == 0',
        holds_for="5m",
        severity="ticket",
        summary="{{ $labels.instance }} cannot be scraped",
        next_step="check whether `flatout run` is alive there; a job that has ended has no exporter",
    ),
    Alert(
        name="FlatoutJobStalled",
        expression=f"min by ({JOB}) (flatout_last_step_age_seconds)"
        f" > clamp_min(20 * max by ({JOB}) (flatout_step_block_median_seconds), 300)",
        holds_for="2m",
        severity="page",
        summary=f"{_OF_JOB} has made no step for {{{{ $value | humanizeDuration }}}}",
        next_step="flatout watch JOB shows what each rank does; --hang-after auto ends a hang",
    ),
    Alert(
        name="FlatoutRankLost",
        expression=f"job:flatout_ranks_up:sum < max by ({JOB}) (flatout_world_size)",
        holds_for="5m",
        severity="page",
        summary=f"{_OF_JOB} has only {{{{ $value }}}} of its ranks",
        next_step="flatout watch JOB names the lost ranks; flatout ledger FILE has the failure",
    ),
    Alert(
        name="FlatoutStepSlowerThanTuned",
        expression=f"job:flatout_step_seconds:median5m > 1.1 * max by ({JOB}) (flatout_step_seconds_promised)",
        holds_for="10m",
        severity="ticket",
        summary=f"{_OF_JOB} takes {{{{ $value | humanizeDuration }}}} per step, 10 % more than as tuned",
        next_step="flatout watch JOB --record 5 shows where the step goes",
    ),
    Alert(
        name="FlatoutStepTimeRose",
        expression="job:flatout_step_seconds:median5m > 1.15 * min_over_time(job:flatout_step_seconds:median5m[6h])",
        holds_for="10m",
        severity="ticket",
        summary=f"{_OF_JOB} takes {{{{ $value | humanizeDuration }}}} per step, over 15 % more than in the last 6 h",
        next_step="flatout watch JOB names the rank and the cause",
    ),
    Alert(
        name="FlatoutRankLate",
        expression="flatout_rank_lateness_seconds > 0.1 * flatout_step_block_median_seconds",
        holds_for="10m",
        severity="ticket",
        summary="rank {{ $labels.rank }} of {{ $labels.job }} on {{ $labels.host }} makes the others wait",
        next_step="compare its GPU's clocks and its data wait with those of the other ranks",
    ),
    Alert(
        name="FlatoutDataWait",
        expression="job:flatout_data_wait:ratio > 0.2",
        holds_for="15m",
        severity="ticket",
        summary=f"{_OF_JOB} waits for batches {{{{ $value | humanizePercentage }}}} of the time",
        next_step="flatout data profile shows which stage of the loader is slow",
    ),
    Alert(
        name="FlatoutLowGoodput",
        expression="job:flatout_goodput:ratio1h < 0.5",
        holds_for="30m",
        severity="ticket",
        summary=f"{_OF_JOB} makes new steps only {{{{ $value | humanizePercentage }}}} of the time",
        next_step="flatout ledger FILE shows where the rest goes",
    ),
    Alert(
        name="FlatoutHostMemoryGrows",
        expression="deriv(flatout_rank_resident_bytes[1h]) * 3600 > 1e9",
        holds_for="30m",
        severity="ticket",
        summary="rank {{ $labels.rank }} of {{ $labels.job }} gains {{ $value | humanize1024 }}B of memory per hour",
        next_step="look for tensors kept from step to step, such as losses that are added up without item()",
    ),
    Alert(
        name="FlatoutMachineXid",
        expression='increase(flatout_xid_errors_total{class="machine"}[10m]) > 0',
        holds_for="0s",
        severity="page",
        summary=f"{_OF_GPU}: an Xid that a job does not cause",
        next_step="flatout explain and the kernel's log show its number; DCGM_FI_DEV_XID_ERRORS is the last one",
    ),
    Alert(
        name="FlatoutRowRemapFailed",
        expression="gpu:row_remap_failure:max > 0",
        holds_for="1m",
        severity="page",
        summary=f"{_OF_GPU} can remap no more rows of its memory",
        next_step="drain the node and return the GPU",
    ),
    Alert(
        name="FlatoutUncorrectableEcc",
        expression="gpu:uncorrectable_ecc:increase1h > 0",
        holds_for="0s",
        severity="page",
        summary=f"{_OF_GPU} has uncorrectable memory errors",
        next_step="reset the GPU before the next job, so that the row is remapped",
    ),
    Alert(
        name="FlatoutRowsRemapped",
        expression="gpu:uncorrectable_remaps:increase1d > 2",
        holds_for="5m",
        severity="ticket",
        summary=f"{_OF_GPU} remapped rows after uncorrectable errors more than twice in a day",
        next_step="plan a reset of the GPU, and run the vendor's diagnostics",
    ),
    Alert(
        name="FlatoutCorrectedErrors",
        # Assumed: no rate of corrected errors is published from which on a GPU fails; remapped rows are NVIDIA's sign.
        expression="gpu:corrected_ecc:increase1h > 100 or gpu:correctable_remaps:increase1d > 2",
        holds_for="5m",
        severity="ticket",
        summary=f"{_OF_GPU} corrects memory errors again and again",
        next_step="flatout watch node weighs draining against waiting; run the vendor's diagnostics",
    ),
    Alert(
        name="FlatoutGpuHot",
        expression="gpu:thermal_throttling:ratio5m > 0.05",
        holds_for="10m",
        severity="ticket",
        summary=f"{_OF_GPU} is slowed by heat {{{{ $value | humanizePercentage }}}} of the time",
        next_step="check fans, air inlet and dust",
    ),
    Alert(
        name="FlatoutPcieReplays",
        expression="gpu:pcie_replays:increase10m > 10",
        holds_for="10m",
        severity="ticket",
        summary=f"{_OF_GPU} sends packets again on its PCIe link",
        next_step="flatout doctor checks the link's speed and width; reseat the card",
    ),
    Alert(
        name="FlatoutLinkErrors",
        expression=with_host("increase(flatout_port_symbol_errors_total[10m])")
        + " > 10 or "
        + with_host("increase(flatout_port_link_downs_total[10m])")
        + " > 0",
        holds_for="5m",
        severity="ticket",
        summary="port {{ $labels.device }}/{{ $labels.port }} on {{ $labels.host }} has errors or goes down",
        next_step="check the cable and the switch's port",
    ),
    Alert(
        name="FlatoutWatchdog",
        expression="vector(1)",
        holds_for="0s",
        severity="info",
        summary="always fires: if it does not, alerts do not reach you",
        next_step="route it to a service that reports silence",
    ),
)


def alert_group() -> dict[str, Any]:
    """Return the rule group as Prometheus reads it."""
    return {"name": "flatout-alerts", "rules": [_rule(alert) for alert in ALERTS]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.holds_for,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "next_step": alert.next_step},
    }
