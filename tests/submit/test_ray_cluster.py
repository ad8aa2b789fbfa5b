"""Whose Ray cluster is found: this user's, never that of whoever wrote a file into the shared temporary folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.records.submission import Scheduler
from flatout.submit import ray_cluster
from flatout.submit.find import FoundScheduler, ray_address
from flatout.submit.queue import _ray_address
from flatout.submit.ray_cluster import RAY_DASHBOARD, is_dashboard_of_another, own_cluster, own_dashboard

OTHER = os.getuid() + 1
RAY: Scheduler = "ray"
NONE_FOUND = [FoundScheduler(scheduler=RAY, is_there=False, looked_for="")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ray" / "ray_current_cluster"
    path.parent.mkdir()
    path.write_text("10.0.0.1:6379")
    return path


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port of this process, taken for that of the dashboard."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(ray_cluster, "_DASHBOARD_PORT", listener.getsockname()[1])
        yield listener


def test_a_cluster_of_this_user_is_found(file: Path, port: socket.socket, tmp_path: Path) -> None:
    for name in ("RAY_TMPDIR", "TMPDIR"):
        assert own_cluster({name: str(tmp_path)}) == "10.0.0.1:6379"
        assert own_dashboard({name: str(tmp_path)}) == ray_address({name: str(tmp_path)}) == RAY_DASHBOARD
    assert own_cluster({"RAY_TMPDIR": str(tmp_path / "none"), "TMPDIR": str(tmp_path)}) is None
    assert not is_dashboard_of_another()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_the_file_of_another_user_is_not_trusted(file: Path, tmp_path: Path) -> None:
    os.chown(file, OTHER, -1)
    assert own_cluster({"TMPDIR": str(tmp_path)}) is own_dashboard({"TMPDIR": str(tmp_path)}) is None


def test_a_link_a_pipe_and_a_folder_are_no_such_file(file: Path, tmp_path: Path) -> None:
    """A link of another user can point to a file of this one; a pipe would never end."""
    target = file.rename(tmp_path / "mine")
    file.symlink_to(target)
    assert own_cluster({"TMPDIR": str(tmp_path)}) is None
    file.unlink()
    os.mkfifo(file)
    assert own_cluster({"TMPDIR": str(tmp_path)}) is None
    file.unlink()
    file.mkdir()
    assert own_cluster({"TMPDIR": str(tmp_path)}) is None


def test_a_dashboard_of_another_user_gets_no_job(
    file: Path, port: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _ray_address(NONE_FOUND) == RAY_DASHBOARD, "nobody's: it is said that nothing answers there"
    monkeypatch.setattr(os, "getuid", lambda: OTHER)
    assert is_dashboard_of_another()
    assert own_dashboard({"TMPDIR": str(tmp_path)}) is None
    with pytest.raises(InputError, match="belongs to another user"):
        _ray_address(NONE_FOUND)
    given = FoundScheduler(scheduler=RAY, is_there=True, looked_for="", address="http://head:8265")
    assert _ray_address([given]) == "http://head:8265"
