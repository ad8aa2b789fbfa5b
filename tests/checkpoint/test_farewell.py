"""A job that is asked to end saves what it has, where all ranks were asked: nothing is lost of its training."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.ranks import Done, run

pytestmark = pytest.mark.usefixtures("warm")

NUM_STEPS = 60


def ask(number_of: dict[int, float]) -> Any:
    """SIGTERM to these ranks, each so long after the tenth step."""

    def watch(ranks: list[Any], outputs: list[Path]) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and "step 10 " not in outputs[0].read_text():
            time.sleep(0.002)
        begun = time.monotonic()
        for rank, after_s in sorted(number_of.items(), key=lambda one: one[1]):
            time.sleep(max(begun + after_s - time.monotonic(), 0.0))
            os.kill(ranks[rank].pid, signal.SIGTERM)

    return watch


def train(folder: Path, kind: str, num_ranks: int, watch: Any = None) -> Done:
    """No checkpoint is due before the training's end."""
    return run(folder, NUM_STEPS, "--every", "1000", "--pause", "0.02", kind=kind, num_ranks=num_ranks, watch=watch)


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Done]:
    """The training that nobody asked to end, by kind and number of ranks."""
    folder = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda kind, num_ranks: train(folder / kind, kind, num_ranks))


@pytest.mark.parametrize(
    ("kind", "num_ranks", "asked"),
    [
        ("plain", 1, {0: 0.0}),
        ("ddp", 2, {0: 0.0, 1: 0.0}),
        ("ddp", 2, {0: 0.3, 1: 0.0}),  # rank 1 waits in a collective for nobody: it is asked first
        ("fsdp", 2, {0: 0.0, 1: 0.1}),
    ],
)
def test_all_ranks_save_the_same_step_and_the_training_ends_with_the_same_bits(
    tmp_path: Path, whole: Callable[[str, int], Done], kind: str, num_ranks: int, asked: dict[int, float]
) -> None:
    uninterrupted = whole(kind, num_ranks)
    assert uninterrupted.codes == [0] * num_ranks, uninterrupted.errors
    folder = tmp_path / "ckpt"
    ended = train(folder, kind, num_ranks, ask(asked))
    assert ended.codes == [-signal.SIGTERM] * num_ranks, ended.errors
    (step,) = saved(folder)
    assert 10 <= max(ended.losses) + 1 == step < NUM_STEPS, "the last step that was made, which it did not print"
    resumed = train(folder, kind, num_ranks)
    assert resumed.codes == [0] * num_ranks and resumed.start == step
    assert resumed.digest == uninterrupted.digest


def test_where_one_rank_alone_is_asked_it_ends_soon_and_nothing_is_saved(tmp_path: Path) -> None:
    """A launcher that takes down the ranks which a failed one has left must not wait for them."""
    times: list[float] = []

    def watch(ranks: list[Any], outputs: list[Path]) -> None:
        ask({1: 0.0})(ranks, outputs)
        times.append(time.monotonic())
        ranks[1].join(15)
        times.append(time.monotonic())

    ended = train(tmp_path / "ckpt", "ddp", 2, watch)
    assert ended.codes[1] == -signal.SIGTERM and times[1] - times[0] < 10
    assert saved(tmp_path / "ckpt") == []


OWN_HANDLER = """\
import signal, sys, torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
from flatout.checkpoint import Checkpointer
model = torch.nn.Linear(1, 1)
with Checkpointer(sys.argv[1], model=model, every=1000) as checkpointer:
    checkpointer.resume()
    print("ready", flush=True)
    signal.pause()
"""


def test_a_handler_of_the_scripts_own_stays(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_HANDLER, str(tmp_path / "ckpt")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 7
    process.stdout.close()


WITH_WORKERS = """\
import os, signal, sys, time
import psutil, torch
from torch.utils.data import DataLoader
from flatout.checkpoint import Checkpointer
model = torch.nn.Linear(1, 1)
with Checkpointer(sys.argv[1], model=model, every=1000) as checkpointer:
    start = checkpointer.resume()
    for step, batch in enumerate(DataLoader(torch.zeros(400, 1), batch_size=1, num_workers=2)):
        model(batch).sum().backward()
        checkpointer.step(step + 1)
        time.sleep(0.05)
        if step == 10:  # as to all processes of a job
            workers = [one for one in psutil.Process().children(recursive=True) if "fork" not in one.name()]
            for process in [*workers, psutil.Process()]:
                process.send_signal(signal.SIGTERM)
"""


def test_loader_workers_that_the_signal_reaches_do_not_keep_their_rank_from_saving(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", WITH_WORKERS, str(tmp_path / "ckpt")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    (step,) = saved(tmp_path / "ckpt")
    assert 11 <= step <= 14


IN_FLIGHT = """\
import os, signal, sys, time, torch
from flatout.checkpoint import Checkpointer
model = torch.nn.Linear(8000, 8000)  # 256 MB
with Checkpointer(sys.argv[1], model=model, every=1000) as checkpointer:
    checkpointer.resume()
    checkpointer.save(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


def test_what_is_being_written_is_brought_to_its_end(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", IN_FLIGHT, str(tmp_path / "ckpt")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert saved(tmp_path / "ckpt") == [1] and time.monotonic() - begun < 50
    assert not list((tmp_path / "ckpt").glob(".partial-*"))
