"""A sample of the published runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plan.published import write_sample


@pytest.fixture(scope="session")
def sample(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(
        shared_data / "published_runs" / "published_runs.csv", tmp_path_factory.mktemp("published") / "sample.csv"
    )
