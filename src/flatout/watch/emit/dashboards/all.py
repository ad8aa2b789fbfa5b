"""All dashboards as files. Out: the text of each by its name."""

from __future__ import annotations

import json

from flatout.watch.emit.dashboards.cluster import CLUSTER
from flatout.watch.emit.dashboards.host import HOST
from flatout.watch.emit.dashboards.job import JOB
from flatout.watch.emit.dashboards.panels import dashboard_json

DASHBOARDS = (JOB, CLUSTER, HOST)


def dashboard_files() -> dict[str, str]:
    """Return the text of each dashboard's file."""
    return {f"{each.uid}.json": json.dumps(dashboard_json(each), indent=2) + "\n" for each in DASHBOARDS}
