"""Two jobs on one folder: the second is refused, unless the first is dead."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.ranks import run

from flatout.checkpoint import lock as lock_module
from flatout.checkpoint.lock import NAME, Lock
from flatout.checkpoint.problems import LockedError


def hold(folder: str, ready: Any) -> None:
    Lock(Path(folder))
    ready.set()
    time.sleep(60)


def holder(folder: Path) -> Any:
    """A process that has the lock."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(str(folder), ready))
    process.start()
    assert ready.wait(60)
    return process


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_second_job_is_refused_in_one_line_and_a_killed_one_is_replaced_at_once(tmp_path: Path) -> None:
    process = holder(tmp_path)
    with pytest.raises(LockedError) as caught:
        Lock(tmp_path)
    assert f"process {process.pid} on {os.uname().nodename}" in str(caught.value) and "\n" not in str(caught.value)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    began = time.monotonic()
    Lock(tmp_path).release()
    assert time.monotonic() - began < 2
    assert list(tmp_path.iterdir()) == []


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    rewrite(tmp_path, token="another", started=1)
    second = Lock(tmp_path)
    assert second.is_held() and not first.is_held()
    second.release()


def test_an_owner_on_another_machine_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Lock(tmp_path)
    rewrite(tmp_path, host="another", boot="another", token="another")
    lives = threading.Event()

    def renew() -> None:
        while not lives.wait(0.05):
            os.utime(tmp_path / NAME)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(LockedError, match="on another"):
            Lock(tmp_path, watch_s=5.0)
    finally:
        lives.set()
        thread.join()
    second = Lock(tmp_path, watch_s=0.2)  # it renews no more
    assert second.is_held()
    second.release()
    first.release()


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    """No job renews it, so it is replaced, as the lock of a job that has ended is."""
    os.mkfifo(tmp_path / NAME)
    found: list[Lock] = []
    thread = threading.Thread(target=lambda: found.append(Lock(tmp_path, watch_s=0.2)), daemon=True)
    thread.start()
    thread.join(20)
    assert found and found[0].is_held()
    found[0].release()


def test_of_several_jobs_that_take_over_at_once_one_gets_it(tmp_path: Path) -> None:
    for _ in range(20):
        Lock(tmp_path)
        rewrite(tmp_path, token="dead", started=1)
        got: list[Lock] = []

        def take(got: list[Lock] = got) -> None:
            with suppress(LockedError):
                got.append(Lock(tmp_path, watch_s=0.1))

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(lock.is_held() for lock in got) == 1
        next(lock for lock in got if lock.is_held()).release()


def test_a_lock_that_another_job_was_quicker_to_take_over_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lock(tmp_path)
    rewrite(tmp_path, token="dead", started=1)
    is_alive, quicker = lock_module._is_alive, []

    def meanwhile(*given: Any) -> bool:
        alive = is_alive(*given)
        if not quicker:
            quicker.append(None)
            quicker[0] = Lock(tmp_path)
        return alive

    monkeypatch.setattr(lock_module, "_is_alive", meanwhile)
    with pytest.raises(LockedError):
        Lock(tmp_path)
    assert quicker[0].is_held()
    quicker[0].release()
    assert list(tmp_path.iterdir()) == []


def test_a_link_whose_answer_was_lost_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system asks again, and the server then says that it exists."""
    link = os.link

    def twice(*given: Any) -> None:
        link(*given)
        link(*given)

    with monkeypatch.context() as patch:
        patch.setattr(lock_module.os, "link", twice)
        first = Lock(tmp_path)
        with pytest.raises(LockedError):
            Lock(tmp_path)
    assert first.is_held()
    first.release()


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(lock_module.os, "link", no_links)
    first = Lock(tmp_path)
    assert first.is_held()
    with pytest.raises(LockedError):
        Lock(tmp_path)
    first.release()


def test_a_removed_lock_is_taken_again_but_not_from_another_job(tmp_path: Path) -> None:
    first = Lock(tmp_path)
    (tmp_path / NAME).unlink()
    assert first.hold() and first.is_held()
    (tmp_path / NAME).unlink()
    second = Lock(tmp_path)
    assert not first.hold() and second.hold()
    second.release()
    first.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounts a file system")
def test_a_full_disk_does_not_keep_a_dead_job_in_its_folder(tmp_path: Path) -> None:
    """Else what it was writing when it was killed, which filled the disk, is never cleared away."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        process = holder(tmp_path)
        with suppress(OSError), (tmp_path / "full").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(LockedError):
            Lock(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        Lock(tmp_path).release()
        (tmp_path / "more").write_text("x")  # what the lock took
        with pytest.raises(OSError, match="No space left"):
            Lock(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "more"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_second_job_on_the_folder_ends_with_one_line(tmp_path: Path) -> None:
    seen = []

    def start_another(first: list[Any], _: Any) -> None:
        until = time.monotonic() + 30
        while not (tmp_path / "ckpt" / NAME).exists() and time.monotonic() < until:
            time.sleep(0.02)
        seen.append(run(tmp_path / "ckpt", 4, kind="ddp", num_ranks=2))
        assert all(rank.is_alive() for rank in first)
        for rank in first:
            os.kill(rank.pid, signal.SIGKILL)

    run(tmp_path / "ckpt", 10_000, "--pause", "0.05", kind="ddp", num_ranks=2, watch=start_another)
    assert seen[0].codes == [2, 2]
    assert all("is written to by another job: process " in error for error in seen[0].errors)
    assert all(error.count("\n") == 1 for error in seen[0].errors)
