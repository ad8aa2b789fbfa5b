"""Readers of published model architectures: from the values of a `config.json` to a workload with exact counts."""
