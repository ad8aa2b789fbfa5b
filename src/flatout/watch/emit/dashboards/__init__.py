"""Grafana dashboards in classic JSON, with the data source as a variable. `panels` arranges the panels of each."""
