"""Arrange the panels of a dashboard. In: its name, variables and rows. Out: Grafana's classic JSON as a dictionary.

The grid is 24 wide; each row of panels fills it, so that no two overlap. Panels and the dashboard have no numeric IDs,
which Grafana gives itself; the `uid` is fixed, so that a newer version replaces an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 39
_GRID_WIDTH, _PANEL_HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
Unit = Literal["s", "percentunit", "percent", "bytes", "decmbytes", "Bps", "short", "watt", "celsius", "rotmhz"]


Kind = Literal["timeseries", "stat"]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    expression: str
    legend: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    description: str = ""


class DashboardVariable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable whose values are those of a label."""

    name: str
    query: str  # label_values(METRIC, LABEL)


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    title: str
    variables: tuple[DashboardVariable, ...]
    rows: tuple[tuple[Panel, ...], ...]


def panel(
    title: str, unit: Unit, *queries: tuple[str, str], kind: Literal["timeseries", "stat"] = "timeseries"
) -> Panel:
    """Return a panel. Each query is an expression and the legend of its series."""
    return Panel(
        title=title,
        unit=unit,
        kind=kind,
        queries=tuple(Query(expression=expression, legend=legend) for expression, legend in queries),
    )


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["flatout"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_data_source(), *map(_variable, dashboard.variables)]},
        "panels": [
            _panel(panel, column, len(row), line)
            for line, row in enumerate(dashboard.rows)
            for column, panel in enumerate(row)
        ],
    }


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: DashboardVariable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
    }


def _panel(panel: Panel, column: int, num_columns: int, line: int) -> dict[str, Any]:
    width = _GRID_WIDTH // num_columns
    return {
        "title": panel.title,
        "type": panel.kind,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * width, "y": line * _PANEL_HEIGHT, "w": width, "h": _PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
        "targets": _targets(panel.queries),
    }


def _targets(queries: Sequence[Query]) -> list[dict[str, Any]]:
    targets = []
    for number, query in enumerate(queries):
        targets.append(
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
        )
    return targets
