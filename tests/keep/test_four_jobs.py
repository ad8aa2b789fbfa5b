"""Jobs that share a ledger folder on two hosts do not touch each other.

`benchmarks/neighbours.py` is the long proof.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.keep.four_jobs import ledger_events, light_parts, run_four_jobs
from tests.nodes import Node

import flatout

pytestmark = pytest.mark.usefixtures("warm")
SOURCE = str(Path(flatout.__file__).parents[1])


@pytest.mark.parametrize("name", [None, "100"], ids=["without a name", "with one name for all"])
def test_a_bug_in_one_of_four_jobs_ends_that_job_alone(
    two_nodes: tuple[Node, Node], tmp_path: Path, name: str | None
) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("FLATOUT_", "TORCHEL"))}

    def start(node: int, command: Sequence[str], output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        named = {"FLATOUT_JOB": name} if name is not None and "SLURM_JOB_ID" not in variables else {}
        given = {**inherited, **variables, **named, "PYTHONPATH": SOURCE, "XDG_STATE_HOME": str(tmp_path / "state")}
        return two_nodes[node].start(command, given, cwd=folder, output=output)

    folder = tmp_path / "shared"
    folder.mkdir()
    parts = light_parts(bug_after_s=1.5, well_after_s=4)
    outcome = run_four_jobs(parts, folder, start, limit_s=120)
    assert outcome.wrong(restarts_of_pair=0, has_one_name=name is not None) == [], ledger_events(folder)
