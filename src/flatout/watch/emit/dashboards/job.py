"""The dashboard of one job: its steps, ranks and use of time."""

from __future__ import annotations

from flatout.watch.emit.dashboards.panels import Dashboard, DashboardVariable, panel

_JOB = '{job=~"$job", job_id=~"$job_id"}'
_RATE = "[$__rate_interval]"

JOB = Dashboard(
    uid="flatout-job",
    title="Flatout: job",
    variables=(
        DashboardVariable(name="job", query="label_values(flatout_rank_up, job)"),
        DashboardVariable(name="job_id", query='label_values(flatout_rank_up{job=~"$job"}, job_id)'),
    ),
    rows=(
        (
            panel("Step time", "s", (f"job:flatout_step_seconds:median{_JOB}", "{{job}}"), kind="stat"),
            panel("Goodput", "percentunit", (f"flatout_goodput_ratio{_JOB}", "{{host}}"), kind="stat"),
            panel(
                "Ranks up",
                "short",
                (f"sum(flatout_rank_up{_JOB})", "up"),
                (f"max(flatout_world_size{_JOB})", "of"),
                kind="stat",
            ),
            panel("Since the last step", "s", (f"min(flatout_last_step_age_seconds{_JOB})", "age"), kind="stat"),
        ),
        (
            panel("Step time by rank", "s", (f"flatout_step_block_median_seconds{_JOB}", "rank {{rank}}")),
            panel(
                "Slow steps",
                "s",
                (f"histogram_quantile(0.99, sum by (le) (rate(flatout_step_seconds_bucket{_JOB}{_RATE})))", "p99"),
                (f"histogram_quantile(0.5, sum by (le) (rate(flatout_step_seconds_bucket{_JOB}{_RATE})))", "median"),
            ),
        ),
        (
            panel(
                "Throughput",
                "short",
                (f"sum(flatout_tokens_per_second{_JOB})", "tokens/s"),
                (f"sum(flatout_samples_per_second{_JOB})", "samples/s"),
            ),
            panel("MFU", "percentunit", (f"flatout_mfu_ratio{_JOB}", "{{job}}")),
            panel(
                "Exposed communication to compute",
                "percentunit",
                (f"flatout_communication_compute_ratio{_JOB}", "rank {{rank}}"),
            ),
        ),
        (
            panel("Waiting for batches", "percentunit", (f"flatout_data_wait_ratio{_JOB}", "rank {{rank}}")),
            panel(
                "Time of the ranks by part",
                "percentunit",
                (f"avg by (part) (rate(flatout_rank_part_seconds_total{_JOB}{_RATE}))", "{{part}}"),
            ),
        ),
        (
            panel("Lateness", "s", (f"flatout_rank_lateness_seconds{_JOB}", "rank {{rank}}")),
            panel("Exposed communication", "s", (f"flatout_exposed_communication_seconds{_JOB}", "rank {{rank}}")),
            panel("Host memory", "bytes", (f"flatout_rank_resident_bytes{_JOB}", "rank {{rank}}")),
        ),
        (
            panel(
                "Use of device time",
                "short",
                (f"sum by (class) (rate(flatout_device_seconds_total{_JOB}{_RATE}))", "{{class}}"),
            ),
            panel(
                "Failures and hangs",
                "short",
                (f"sum(flatout_failures_total{_JOB})", "failures"),
                (f"sum(flatout_hangs_total{_JOB})", "hangs"),
            ),
        ),
    ),
)
