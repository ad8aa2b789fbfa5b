"""The dashboard of a cluster: all jobs next to each other, and the faults of its GPUs."""

from __future__ import annotations

from flatout.watch.emit.dashboards.panels import Dashboard, DashboardVariable, panel

CLUSTER = Dashboard(
    uid="flatout-cluster",
    title="Flatout: cluster",
    variables=(DashboardVariable(name="job", query="label_values(flatout_rank_up, job)"),),
    rows=(
        (
            panel("Jobs", "short", ("count(count by (job, job_id) (flatout_world_size))", "jobs"), kind="stat"),
            panel("Devices held", "short", ("sum(flatout_devices)", "devices"), kind="stat"),
            panel(
                "Goodput",
                "percentunit",
                (
                    'sum(rate(flatout_device_seconds_total{class="productive"}[$__rate_interval]))'
                    " / sum(rate(flatout_device_seconds_total[$__rate_interval]))",
                    "productive",
                ),
                kind="stat",
            ),
        ),
        (
            panel("Step time", "s", ('job:flatout_step_seconds:median{job=~"$job"}', "{{job}} {{job_id}}")),
            panel("Goodput by job", "percentunit", ('flatout_goodput_ratio{job=~"$job"}', "{{job}} {{job_id}}")),
        ),
        (
            panel(
                "Lost device time",
                "short",
                (
                    'sum by (class) (rate(flatout_device_seconds_total{class!="productive"}[$__rate_interval]))',
                    "{{class}}",
                ),
            ),
            panel("Waiting for batches", "percentunit", ('job:flatout_data_wait:ratio{job=~"$job"}', "{{job}}")),
        ),
        (
            panel("GPU use", "percent", ("avg by (host) (DCGM_FI_DEV_GPU_UTIL)", "{{host}}")),
            panel("Power", "watt", ("sum by (host) (max by (host, UUID) (DCGM_FI_DEV_POWER_USAGE))", "{{host}}")),
            panel(
                "Xids of machines",
                "short",
                ('sum by (host, gpu) (flatout_xid_errors_total{class="machine"})', "{{host}} GPU {{gpu}}"),
            ),
        ),
    ),
)
