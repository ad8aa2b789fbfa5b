"""Do the emitted dashboards have the form that Grafana's own typed library reads? Each is decoded and encoded again.

    pip install grafana-foundation-sdk
    PYTHONPATH=src python benchmarks/dashboards_by_sdk.py [--out FILE]

Keys that the library does not know would be lost on the way. Grafana itself is not run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kept_result import keep

from flatout.watch.emit.dashboards.all import dashboard_files


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each key."""
    items = value.items() if isinstance(value, dict) else (("[]", each) for each in value)
    for name, inner in items:
        yield f"{path}.{name}"
        if isinstance(inner, dict | list):
            yield from keys(inner, f"{path}.{name}")


def main() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"grafana_foundation_sdk": version("grafana-foundation-sdk"), "dashboards": {}}
    for name, text in dashboard_files().items():
        written = json.loads(text)
        dashboard = Dashboard.from_json(written)
        encoded = json.loads(JSONEncoder(sort_keys=True).encode(dashboard))
        lost = sorted(set(keys(written)) - set(keys(encoded)))
        result["dashboards"][name] = {"panels": len(dashboard.panels or []), "keys_that_it_does_not_know": lost}
    keep(result, arguments.out)


if __name__ == "__main__":
    main()
