"""The queue on a real Ray cluster of three nodes with 8 fake GPUs each, on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.ray_nodes import PATIENCE, started_cluster

from flatout.schedule.live.controller import Controller
from flatout.schedule.live.decide import ControllerSettings
from flatout.schedule.live.log import LogFile
from flatout.schedule.live.ray import RayQueue, TaskContext
from flatout.schedule.live.selectors import selectors
from flatout.schedule.live.view import ClusterView

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'flatout[ray]'")
NUM_NODES, GPUS_PER_NODE = 3, 8
PATIENCE_S = 120.0
FEW = {"include_dashboard": False, "include_log_monitor": False, "object_store_memory": 80 << 20}  # a node's processes


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        # A dead node is noticed in seconds, not in half a minute.
        checks = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 1000,
            "health_check_failure_threshold": 5,
            # No workers but those that tasks need: each is a Python that imports Ray.
            "enable_worker_prestart": False,
            "prestart_worker_first_driver": False,
        }
        cluster = started_cluster(num_cpus=0, num_gpus=0, _system_config=checks, **FEW)
        for _ in range(NUM_NODES):
            cluster.add_node(num_cpus=1, num_gpus=GPUS_PER_NODE, **FEW)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def queue(ray_cluster: Any) -> Iterator[RayQueue]:
    queue = RayQueue()
    yield queue
    queue.close()


def hold(part: TaskContext) -> None:
    """Runs until it is killed."""
    time.sleep(600)


def note(part: TaskContext, file: str, name: str) -> str:
    with Path(file).open("a") as notes:
        notes.write(name + "\n")
    time.sleep(0.2)
    return f"{name} {part.rank}/{part.num_nodes}"


def count(part: TaskContext, file: str, last: int) -> int:
    """From where it left off to `last`, ten a second."""
    path = Path(file)
    at = int(path.read_text().split()[-1]) if path.exists() else 0
    with path.open("a") as numbers:
        for number in range(at + 1, last + 1):
            numbers.write(f"{number}\n")
            numbers.flush()
            time.sleep(0.1)
    return part.restarts


def fail(part: TaskContext) -> None:
    raise ValueError("no data")


def until(queue: RayQueue, what: Callable[[], bool], controller: Controller | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, [(job.id, job.state, job.error) for job in queue.jobs.values()]
        queue.step()
        if controller is not None:
            controller.cycle()
        time.sleep(0.05)


def controller(
    queue: RayQueue, log: LogFile, settings: ControllerSettings, idle: dict[str, float] | None = None
) -> Controller:
    import msgspec

    def enrich(view: ClusterView) -> ClusterView:
        return msgspec.structs.replace(view, idle_for_s=idle or {})

    return Controller(queue, settings, log=log, max_actions_per_hour=99, enrich=enrich, say=lambda line: None)


def test_gangs_start_whole_and_by_priority(queue: RayQueue, tmp_path: Path) -> None:
    blocker = queue.submit(hold, nodes=3, gpus_per_node=8)
    until(queue, lambda: blocker.state == "running")
    assert len(set(blocker.on_nodes)) == 3
    file = str(tmp_path / "notes")
    jobs = {
        name: queue.submit(note, file, name, nodes=3, gpus_per_node=8, priority=priority)
        for name, priority in (("low", 10), ("high", 30), ("middle", 20))
    }
    small = queue.submit(note, file, "small", gpus_per_node=1, priority=5)
    queue.step()
    assert {job.state for job in (*jobs.values(), small)} == {"pending"}
    queue.cancel(blocker.id)
    until(queue, lambda: small.state == "done")
    assert list(dict.fromkeys((tmp_path / "notes").read_text().split())) == ["high", "middle", "low", "small"]
    assert jobs["high"].results == ("high 0/3", "high 1/3", "high 2/3")


def test_an_urgent_job_takes_the_least_lost_work_and_the_victim_goes_on(queue: RayQueue, tmp_path: Path) -> None:
    keep = queue.submit(hold, gpus_per_node=8, may_requeue=False)
    older = queue.submit(hold, gpus_per_node=8)
    until(queue, lambda: older.state == "running" and keep.state == "running")
    time.sleep(1)
    younger = queue.submit(count, str(tmp_path / "count"), 30, gpus_per_node=8)
    until(queue, (tmp_path / "count").exists)
    time.sleep(0.5)
    urgent = queue.submit(note, str(tmp_path / "notes"), "urgent", gpus_per_node=8, comment="urgent", priority=1)
    settings = ControllerSettings(urgent=selectors("--urgent", ["comment=urgent"]))
    with LogFile(tmp_path / "log", cluster=queue.cluster(), command=["test"]) as log:
        until(queue, lambda: younger.state == "done", controller(queue, log, settings))
        kinds = [(entry.action.kind, entry.action.target, entry.outcome) for entry in log.entries]
    assert urgent.state == "done"
    assert (keep.restarts, older.restarts, younger.restarts) == (0, 0, 1)
    numbers = [int(word) for word in (tmp_path / "count").read_text().split()]
    assert sorted(set(numbers)) == list(range(1, 31)) and len(numbers) <= 31
    assert younger.results == (1,)
    assert [each for each in kinds if each[0] != "priority"] == [
        ("requeue-hold", younger.id, "done"),
        ("release", younger.id, "done"),
    ]


def test_idle_gpus_go_to_a_job_that_waits(queue: RayQueue, tmp_path: Path) -> None:
    busy = queue.submit(hold, nodes=2, gpus_per_node=8)
    idle = queue.submit(hold, gpus_per_node=8)
    until(queue, lambda: busy.state == idle.state == "running")
    waiting = queue.submit(note, str(tmp_path / "notes"), "x", gpus_per_node=8)
    with LogFile(tmp_path / "log", cluster=queue.cluster(), command=["test"]) as log:
        until(
            queue,
            lambda: waiting.state == "done",
            controller(queue, log, ControllerSettings(reclaims_idle=True), idle={idle.id: 1800.0}),
        )
    assert (busy.restarts, idle.restarts) == (0, 1)


def test_an_error_ends_a_job_and_a_killed_worker_requeues_it(queue: RayQueue, tmp_path: Path) -> None:
    wrong = queue.submit(fail, nodes=2, gpus_per_node=1)
    until(queue, lambda: wrong.state == "failed")
    assert wrong.error == "no data" and wrong.restarts == 0
    job = queue.submit(count, str(tmp_path / "count"), 30, gpus_per_node=8)
    until(queue, (tmp_path / "count").exists)
    os.kill(_counting_worker(), signal.SIGKILL)
    until(queue, lambda: job.state == "done")
    assert job.results == (1,)  # the second time
    assert [int(word) for word in (tmp_path / "count").read_text().split()] == list(range(1, 31))


def test_a_lost_node_is_a_failure_and_its_job_waits_for_another(queue: RayQueue, ray_cluster: Any) -> None:
    node = ray_cluster.add_node(num_cpus=1, num_gpus=16, **FEW)
    job = queue.submit(hold, gpus_per_node=16)  # only the new node has so many
    until(queue, lambda: job.state == "running")
    (lost,) = job.on_nodes
    ray_cluster.remove_node(node, allow_graceful=False)
    until(queue, lambda: job.restarts == 1)
    until(queue, lambda: [failure.node for failure in queue.read().failures] == [lost])
    assert job.state == "pending"


def _counting_worker() -> int:
    """Ray gives a worker the name of its task."""
    import psutil

    processes = psutil.process_iter(["cmdline"])
    (found,) = [each.pid for each in processes if (each.info["cmdline"] or [""])[0] == "ray::count"]
    return int(found)
