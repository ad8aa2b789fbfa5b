"""Data that others published and that may not be copied into the repository: it is in `../shared`, where there is one.

A test that needs it requests the fixture `shared_data`, itself or through another fixture. Without `../shared` such
tests are deselected; everything else must pass without it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return SHARED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SHARED.is_dir():
        return
    needs_it = [item for item in items if "shared_data" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=needs_it)
    items[:] = [item for item in items if "shared_data" not in getattr(item, "fixturenames", ())]


def pytest_report_header() -> list[str]:
    return [] if SHARED.is_dir() else [f"no {SHARED}: tests that need published data are deselected"]
