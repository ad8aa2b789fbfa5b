"""The metrics of one job for Prometheus. In: its ledger, heartbeats and counters. Out: a page of metrics over HTTP."""
