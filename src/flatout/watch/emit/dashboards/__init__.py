"""Grafana dashboards in classic JSON, with the data source as a variable. One file per dashboard; `panels` arranges it."""
