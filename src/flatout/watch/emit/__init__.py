"""Files for Prometheus, Alertmanager, Grafana and dcgm-exporter.

In: a target's name. Out: `Emitted` files, not written.

recording_rules  series that the alerts and dashboards share
alerts           one row per alert
dashboards/      one file per dashboard
alertmanager     routes, and which alerts silence others
scrape_config    how Prometheus finds the exporters
node_health      health checks for Slurm and Kubernetes
job_mapping      scripts with which dcgm-exporter labels GPUs with Slurm jobs
targets          the table of all of these
"""
