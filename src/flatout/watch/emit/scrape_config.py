"""How Prometheus scrapes the exporters of `flatout run`. In: their addresses. Out: YAML for `prometheus.yml`."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.emit.yaml_text import yaml_text

INTERVAL = "15s"
_EXAMPLE = ("localhost:9464",)


def scrape_config_text(targets: Sequence[str]) -> str:
    """Return a whole `prometheus.yml`. `targets` are HOST:PORT; empty: an example.

    `honor_labels` keeps the exporter's label `job`, which names the training; Prometheus would rename it.
    """
    return yaml_text(
        {
            "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["flatout-rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "flatout",
                    "honor_labels": True,
                    "static_configs": [{"targets": list(targets or _EXAMPLE)}],
                }
            ],
        }
    )
