"""The dashboards have the form that Grafana imports, and nothing in them depends on one installation."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from flatout.errors import UsageError
from flatout.watch.emit.dashboards.all import dashboard_files
from flatout.watch.emit.targets import emitted

FILES = {name: json.loads(text) for name, text in dashboard_files().items()}


@pytest.mark.parametrize("dashboard", FILES.values(), ids=FILES.keys())
def test_a_dashboard_is_classic_json_with_its_data_source_as_a_variable(dashboard: dict[str, Any]) -> None:
    assert 36 <= dashboard["schemaVersion"] <= 41 and re.fullmatch("[a-z-]{1,40}", dashboard["uid"])
    assert "id" not in dashboard and not any("id" in panel for panel in dashboard["panels"])
    source, *variables = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    names = {variable["name"] for variable in variables}
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= names, f"{target['expr']} uses a variable that the dashboard lacks"


@pytest.mark.parametrize("dashboard", FILES.values(), ids=FILES.keys())
def test_no_two_panels_overlap_and_each_is_within_the_grid(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_uids_and_titles_differ() -> None:
    assert len({dashboard["uid"] for dashboard in FILES.values()}) == len(FILES) == 3
    assert len({dashboard["title"] for dashboard in FILES.values()}) == len(FILES)


def test_an_unknown_target_is_refused_with_the_targets() -> None:
    with pytest.raises(UsageError, match=r"must be prometheus, grafana, .* or scrape-config, but is `influx`"):
        emitted("influx")
