"""JAX's own profiler, as Flatout starts and stops it: on a stand-in for `jax`, which the suite does not install."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flatout.inside import xla_profile
from flatout.inside.log import LOG
from flatout.inside.xla_profile import XlaProfiler


class Jax(ModuleType):
    """A stand-in that notes which steps run while a profile is recorded."""

    def __init__(self) -> None:
        super().__init__("jax")
        self.calls: list[str] = []
        self.recorded: list[int] = []
        self.listeners: list[Callable[..., None]] = []
        jax = self

        class StepTraceAnnotation:
            def __init__(self, name: str, step_num: int) -> None:
                if jax.calls and jax.calls[-1].startswith("start"):
                    jax.recorded.append(step_num)

            def __enter__(self) -> None:
                pass

            def __exit__(self, *_: object) -> None:
                pass

        def start_trace(folder: str) -> None:
            if jax.calls and jax.calls[-1].startswith("start"):
                raise RuntimeError("Only one profile may be run at a time.")
            jax.calls.append(f"start {Path(folder).name}")

        self.profiler = SimpleNamespace(
            StepTraceAnnotation=StepTraceAnnotation,
            start_trace=start_trace,
            stop_trace=lambda: jax.calls.append("stop"),
        )
        self.monitoring = SimpleNamespace(register_event_duration_secs_listener=self.listeners.append)

    def process_index(self) -> int:
        return 2

    def compiles(self) -> None:
        for listener in self.listeners:
            listener("/jax/core/compile/backend_compile_duration", 0.1)

    def steps(self, *numbers: int) -> None:
        for number in numbers:
            with self.profiler.StepTraceAnnotation("train", step_num=number):
                pass


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[Jax]:
    fake = Jax()
    monkeypatch.setitem(sys.modules, "jax", fake)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(LOG, "num_errors", 0)
    monkeypatch.setattr(LOG, "is_silenced", False)
    monkeypatch.setattr("atexit.register", lambda function: function)
    yield fake
    assert LOG.num_errors == 0


def hooked(jax: Any, folder: Path, num_steps: int = 2, warmup: int | None = None) -> XlaProfiler:
    profile = XlaProfiler(jax, folder, num_steps, warmup)
    profile.hook()
    return profile


def test_whole_steps_are_recorded_after_the_warm_up(jax: Jax, tmp_path: Path) -> None:
    hooked(jax, tmp_path)
    jax.steps(*range(8))
    assert jax.calls == ["start rank2", "stop"]
    assert jax.recorded == [3, 4]
    assert (tmp_path / "rank2").is_dir()


def test_steps_that_compile_are_not_recorded(jax: Jax, tmp_path: Path) -> None:
    hooked(jax, tmp_path)
    jax.steps(0, 1, 2)
    jax.compiles()  # within step 2, so step 3 is the first without
    jax.steps(3, 4, 5, 6)
    assert jax.recorded == [4, 5]


def test_the_warm_up_that_the_user_names_is_kept(jax: Jax, tmp_path: Path) -> None:
    hooked(jax, tmp_path, warmup=1)
    jax.compiles()
    jax.steps(0, 1, 2, 3)
    assert jax.recorded == [1, 2]


def test_a_job_that_ends_early_still_has_its_profile(jax: Jax, tmp_path: Path) -> None:
    profile = hooked(jax, tmp_path, num_steps=100)
    jax.steps(*range(6))
    profile.stop()  # as at the exit of the process
    assert jax.calls == ["start rank2", "stop"]


def test_a_profile_that_the_script_starts_ends_ours_and_raises_nothing(jax: Jax, tmp_path: Path) -> None:
    hooked(jax, tmp_path, num_steps=100)
    jax.steps(0, 1, 2, 3)
    jax.profiler.start_trace("own")
    jax.steps(4, 5)
    assert jax.calls == ["start rank2", "stop", "start own"]


def test_an_error_of_the_profiler_is_not_the_jobs(jax: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = hooked(jax, tmp_path)
    monkeypatch.setattr(jax, "process_index", lambda: 1 / 0)
    jax.steps(*range(6))
    assert LOG.num_errors > 0
    profile.stop()
    monkeypatch.setattr(LOG, "num_errors", 0)


def test_a_script_without_marks_is_recorded_once_it_compiles_no_more(
    jax: Jax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("QUIET_S", 0.05), ("UNMARKED_S", 0.05), ("_LOOK_S", 0.01)):
        monkeypatch.setattr(xla_profile, name, seconds)
    hooked(jax, tmp_path)
    time.sleep(0.1)
    assert jax.calls == []  # nothing has been compiled, so nothing has run
    jax.compiles()
    for watcher in threading.enumerate():
        if watcher.name == "flatout-xla-profile":
            watcher.join(5)
    assert jax.calls == ["start rank2", "stop"]
