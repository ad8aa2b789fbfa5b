"""`--engine ray`: the same result as in one process, and inputs that other machines cannot read are refused."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import UsageError
from flatout.rank_executor import map_ranks

ARCHIVE = Path(__file__).parents[2] / "examples/traces/healthy_fsdp.tar.xz"


class FakeRay(types.ModuleType):
    """What the engine calls of Ray, in this process; `num_nodes` machines, and one that has died."""

    class exceptions:  # noqa: N801  as in Ray
        class RayTaskError(Exception):
            pass

    def __init__(self, num_nodes: int) -> None:
        super().__init__("ray")
        self.num_nodes = num_nodes
        self.num_tasks = 0
        self.is_running = False
        self.address: str | None = None

    def is_initialized(self) -> bool:
        return self.is_running

    def init(self, *, address: str | None, **options: object) -> None:
        self.is_running = True
        self.address = address

    def shutdown(self) -> None:
        self.is_running = False

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": str(n), "Alive": n < self.num_nodes} for n in range(self.num_nodes + 1)]

    def remote(self, **options: object) -> Callable[[Callable[[Any], Any]], Any]:
        def wrap(function: Callable[[Any], Any]) -> Any:
            def submit(value: Any) -> Any:
                self.num_tasks += 1
                return function(value)

            return types.SimpleNamespace(remote=submit)

        return wrap

    def get(self, reference: Any) -> Any:
        return reference


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay(num_nodes=request.param)
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_an_archive_is_refused_on_a_cluster_of_several_machines(cluster: FakeRay) -> None:
    with pytest.raises(UsageError) as error:
        diagnose_paths([ARCHIVE], engine="ray")
    assert str(error.value) == (
        f"with `--engine ray`, each node must be able to read the traces, but {ARCHIVE} was unpacked on this machine "
        "alone and the cluster has 3 nodes"
    )
    assert "--engine processes" in error.value.hint and "share" in error.value.hint
    assert (cluster.num_tasks, cluster.is_running) == (0, False)


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_an_archive_is_read_on_a_cluster_of_one_machine(cluster: FakeRay) -> None:
    assert diagnose_paths([ARCHIVE], engine="ray").diagnosis == diagnose_paths([ARCHIVE], engine="serial").diagnosis
    assert cluster.num_tasks == 2


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_files_are_read_on_a_cluster_of_several_machines(cluster: FakeRay) -> None:
    assert list(map_ranks(abs, [-1, 2], engine="ray")) == [1, 2]
    assert cluster.num_tasks == 2


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_only_a_cluster_that_is_named_or_of_this_user_is_joined(
    cluster: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself joins the cluster that a file in the shared temporary folder names, and sends it our functions."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()

    def joined() -> str | None:
        assert list(map_ranks(abs, [-1], engine="ray")) == [1]
        return cluster.address

    assert joined() == "local"
    file.write_text("10.0.0.1:6379")
    assert joined() is None, "Ray takes the address in the file"
    monkeypatch.setattr(os, "getuid", lambda: os.stat(file).st_uid + 1)
    assert joined() == "local"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert joined() is None, "Ray takes the address in the environment"


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'flatout[ray]'")
def test_ray_itself_gives_the_same_diagnosis_of_an_archive() -> None:
    assert diagnose_paths([ARCHIVE], engine="ray").diagnosis == diagnose_paths([ARCHIVE], engine="serial").diagnosis
