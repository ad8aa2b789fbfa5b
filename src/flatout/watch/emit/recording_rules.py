"""The recording rules: series that the alerts and dashboards share. Out: rows, and Prometheus' rule group of them.

dcgm-exporter renamed its label `Hostname` to `hostname` in 2026; the rules read both into `host`. Its series and those
of `flatout run` have the same names, so that rules take the maximum per GPU and never a sum of both.
"""

from __future__ import annotations

from typing import Any

import msgspec

JOB = "job, job_id"


class RecordingRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    expression: str


def with_host(expression: str) -> str:
    """Return the expression with the label `host`, whichever spelling of it the series has."""
    old = f'label_replace({expression}, "host", "$1", "Hostname", "(.+)")'
    return f'label_replace({old}, "host", "$1", "hostname", "(.+)")'


def _per_gpu(expression: str) -> str:
    return f"max by (host, gpu, UUID) ({with_host(expression)})"


RULES = (
    RecordingRule(
        name="job:flatout_step_seconds:median",
        expression=f"quantile by ({JOB}) (0.5, flatout_step_block_median_seconds)",
    ),
    RecordingRule(
        name="job:flatout_step_seconds:median5m",
        expression="avg_over_time(job:flatout_step_seconds:median[5m])",
    ),
    RecordingRule(
        name="job:flatout_goodput:ratio1h",
        expression=(
            f'sum by ({JOB}) (rate(flatout_device_seconds_total{{class="productive"}}[1h]))'
            f" / sum by ({JOB}) (rate(flatout_device_seconds_total[1h]))"
        ),
    ),
    RecordingRule(
        name="job:flatout_data_wait:ratio",
        expression=f"avg by ({JOB}) (flatout_data_wait_ratio)",
    ),
    RecordingRule(
        name="job:flatout_ranks_up:sum",
        expression=f"sum by ({JOB}) (flatout_rank_up)",
    ),
    RecordingRule(
        name="gpu:thermal_throttling:ratio5m",
        expression=_per_gpu("rate(DCGM_FI_DEV_THERMAL_VIOLATION[5m])") + " / 1e9",
    ),
    RecordingRule(
        name="gpu:row_remap_failure:max",
        expression=_per_gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE"),
    ),
    RecordingRule(
        name="gpu:uncorrectable_ecc:increase1h",
        expression=_per_gpu("increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h])"),
    ),
    RecordingRule(
        name="gpu:uncorrectable_remaps:increase1d",
        expression=_per_gpu("increase(DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS[1d])"),
    ),
    RecordingRule(
        name="gpu:corrected_ecc:increase1h",
        expression=_per_gpu("increase(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL[1h])"),
    ),
    RecordingRule(
        name="gpu:correctable_remaps:increase1d",
        expression=_per_gpu("increase(DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS[1d])"),
    ),
    RecordingRule(
        name="gpu:pcie_replays:increase10m",
        expression=_per_gpu("increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m])"),
    ),
)


def recording_group() -> dict[str, Any]:
    """Return the rule group as Prometheus reads it."""
    rules = [{"record": rule.name, "expr": rule.expression} for rule in RULES]
    return {"name": "flatout-recording", "rules": rules}
