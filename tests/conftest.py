"""Settings of all tests."""

from __future__ import annotations

import builtins
import gc
import json
import os
import signal
import statistics
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.syntax import nodes

pytest_plugins = [
    "tests.xdist_messages",
    "tests.warm.fixture",
    "tests.slow_network.fixture",
    "tests.slurm",
    "tests.nodes",
    "tests.shared_data",
]

# How long each file of tests took (`benchmarks/suite_durations.py`). A file that is missing counts as a usual one.
DURATIONS: dict[str, float] = json.loads(Path(__file__).with_name("durations.json").read_text())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of workers for `-n auto`: two more than the cores, because tests that start jobs mostly wait
    for them. What fails because the cores are busy is run again, alone (`Makefile`).
    """
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while all test files are imported, nor among what they left for good when the tests run.

    Hardly anything of theirs is garbage, and looking takes each worker seconds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Forget the syntax trees, which take a quarter of a gigabyte, after the files that look at them."""
    try:
        return (yield)
    finally:
        if nextitem is None or _unit(nextitem.nodeid) != _unit(item.nodeid):
            nodes.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files so that the cores are as busy at the beginning as at the end.

    The longest files are begun first, so that no core is left waiting for one at the end. Files whose tests mostly wait
    for processes are spread over the whole run, among those that compute.
    """
    waiting = {_unit(item.nodeid) for item in items if _STARTS_PROCESSES.intersection(_fixtures(item))}
    computing = {_unit(item.nodeid) for item in items} - waiting
    places = {unit: place for place, unit in enumerate(_spread(waiting, computing))}
    items.sort(key=lambda item: (places[_unit(item.nodeid)], _file(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each worker one unit of files after the other; the last of many workers begins with those of clusters."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class UnitScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            has_clusters = len(self.nodes) > 2 and node is self.nodes[-1]
            preferred = next((unit for unit in self.workqueue if (unit in _CLUSTER_UNITS) == has_clusters), None)
            if preferred is not None:
                self.workqueue.move_to_end(preferred, last=False)
            super()._assign_work_unit(node)

    return UnitScheduling(config, log)


_STARTS_PROCESSES = {"warm", "cold", "slurm", "slurm_lab"}
# Files that share what takes seconds to make in each process that needs it: one worker runs all of a unit.
_UNITS = {
    "the process that ranks of checkpoints are forked from": (
        "tests/checkpoint/test_awkward.py",
        "tests/checkpoint/test_farewell.py",
        "tests/checkpoint/test_kills.py",
        "tests/checkpoint/test_lock.py",
        "tests/checkpoint/test_ranks.py",
        "tests/checkpoint/test_resume.py",
    ),
    "the syntax trees of all source files": (
        "tests/docs/test_words.py",
        "tests/inside/test_protocol.py",
        "tests/test_imports.py",
        "tests/test_names.py",
        "tests/test_sentences.py",
    ),
    "the diagnoses of the traces with a known cause": (
        "tests/diagnose/test_known_causes.py",
        "tests/predict/test_predict.py",
        "tests/predict/test_replay.py",
    ),
}
# Files whose tests mostly wait for daemons: one worker takes them all, so that Slurm is started once and no core idles.
_CLUSTER_UNITS = {
    "tests/bench/test_command.py",
    "tests/doctor/test_hosts.py",
    "tests/emit/test_placement.py",
    "tests/emit/test_rendezvous.py",
    "tests/keep/test_slurm_requeue.py",
    "tests/keep/test_two_nodes.py",
    "tests/launch/test_slurm.py",
    "tests/profile/test_slurm.py",
    "tests/rank_executor/test_ray.py",
    "tests/schedule/live/test_ray_queue.py",
    "tests/schedule/live/test_slurm_live.py",
    "tests/submit/test_canary_on_slurm.py",
    "tests/submit/test_launchers_on_nodes.py",
    "tests/submit/test_slurm.py",
    "tests/tune/test_slurm.py",
}
_UNIT_OF = {file: unit for unit, files in _UNITS.items() for file in files}


def _file(node: str) -> str:
    return node.split("::")[0]


def _unit(node: str) -> str:
    return _UNIT_OF.get(_file(node), _file(node))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _spread(*kinds: set[str]) -> Iterator[str]:
    """Yield the units, of each kind the longest first, so that all kinds are used up at the same rate."""
    usual_s = statistics.median(DURATIONS.values())

    def duration_s(unit: str) -> float:
        return sum(DURATIONS.get(file, usual_s) for file in _UNITS.get(unit, (unit,)))

    places: dict[str, tuple[float, float]] = {}
    for units in kinds:
        total_s = sum(map(duration_s, units)) or 1.0
        begun_s = 0.0
        for unit in sorted(units, key=lambda unit: (-duration_s(unit), unit)):
            places[unit] = begun_s / total_s, -duration_s(unit)
            begun_s += duration_s(unit)
    yield from sorted(places, key=lambda unit: (places[unit], unit))


@pytest.fixture(scope="module", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tunings and benches learn from tests is not the user's, nor the next module's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """What a library leaves behind in this process is not what the next module's tests meet.

    Ray replaces `print`, handles SIGTERM, sets variables and puts packages of its own before all others, for good.
    Where something was once compiled, torch counts it for good, and we count no FLOPs. What runs inside a job gives up
    after three errors in a process.
    """
    printer, handlers = builtins.print, {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    variables, path = dict(os.environ), list(sys.path)
    yield
    builtins.print = printer
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name in os.environ.keys() - variables.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(variables)
    sys.path[:] = path
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()
    if "flatout.inside.log" in sys.modules:  # after three errors, which tests cause, it would do nothing more
        sys.modules["flatout.inside.log"].LOG.__init__()


# A shell starts what it puts into the background deaf to SIGINT, and programs inherit that, which tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Continuous integration tries the same examples each time; at a desk each run tries new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
