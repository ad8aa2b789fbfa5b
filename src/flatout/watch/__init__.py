"""Watch jobs while they run.

In: the heartbeats, the ledger and the counters of a running job. Out: metrics for Prometheus, with rules, alerts and
dashboards; a live view; and findings as they begin and end.

    jobs        the jobs that run on this host, and the statuses of their other nodes
    exporter/   the metrics of one job, served to Prometheus by a separate process
    emit/       rules, alerts and dashboards, as files for Prometheus and Grafana
    view/       the live view of a job
    diagnosis/  change points in the step time, and their causes
    health/     warnings before a failure, weighed by their cost

Nothing here changes the job, the machine or another service.
"""
