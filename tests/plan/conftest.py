"""The published runs lie beside the checkout; where they do not, the tests that replay them are left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.plan.published import RUNS, write_sample

collect_ignore: list[str] = []
if not RUNS.exists():
    collect_ignore += ["test_evaluate.py", "test_evaluate_command.py"]
    print("tests/plan: ../shared/data is absent, so published runs are not replayed", file=sys.stderr)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("published") / "sample.csv")
