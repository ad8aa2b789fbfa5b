"""A configuration for Alertmanager. Out: YAML with the user's receivers left to fill in.

Alerts are grouped by job and host, so that one fault is one message. A lost rank or a stalled job silences what follows
from it: a job without a rank is also slow, and its goodput is low.
"""

from __future__ import annotations

from flatout.emit.yaml_text import Value, yaml_text

_CAUSES = "FlatoutJobStalled|FlatoutRankLost"
_FOLLOWING = "FlatoutStepSlowerThanTuned|FlatoutStepTimeRose|FlatoutRankLate|FlatoutLowGoodput|FlatoutDataWait"


def alertmanager_text() -> str:
    """Return the configuration."""
    routes: list[Value] = [
        {"matchers": ['alertname="FlatoutWatchdog"'], "receiver": "flatout-watchdog", "repeat_interval": "5m"},
        {"matchers": ['severity="page"'], "receiver": "flatout-page"},
        {"matchers": ['severity="ticket"'], "receiver": "flatout-ticket", "repeat_interval": "1d"},
    ]
    receivers: list[Value] = [{"name": f"flatout-{name}"} for name in ("watchdog", "page", "ticket")]
    return yaml_text(
        {
            "route": {
                "receiver": "flatout-ticket",
                "group_by": ["alertname", "job", "job_id", "host"],
                "group_wait": "30s",
                "group_interval": "5m",
                "repeat_interval": "4h",
                "routes": routes,
            },
            "inhibit_rules": [
                {
                    "source_matchers": [f'alertname=~"{_CAUSES}"'],
                    "target_matchers": [f'alertname=~"{_FOLLOWING}"'],
                    "equal": ["job", "job_id"],
                }
            ],
            "receivers": receivers,
        }
    )
