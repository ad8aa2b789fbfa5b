"""One process: what is saved and when, what is refused, and what happens when the disk does not do as it should."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoint.training import Data, build, make_optimizer, train_step

from flatout.checkpoint import Checkpointer, CheckpointError
from flatout.checkpoint import store as store_module
from flatout.checkpoint.timer import CheckpointTimer

pytestmark = pytest.mark.usefixtures("warm")


class Run:
    """A training in this process."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.model = build("plain")
        self.optimizer = make_optimizer(self.model)
        self.data = Data(0)
        self.checkpointer = Checkpointer(folder, model=self.model, optimizer=self.optimizer, data=self.data, **options)

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            train_step(self.model, self.optimizer, self.data.next())
            self.checkpointer.save(step + 1, wait=True)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Run]:
    run = Run(folder, **options)
    try:
        yield run
    finally:
        run.checkpointer.close()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def resumed(folder: Path, **options: Any) -> tuple[int, dict[str, torch.Tensor]]:
    with running(folder, **options) as run:
        return run.checkpointer.resume(), run.weights()


# What is saved.


def test_a_checkpoint_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
        read = load_file(tmp_path / "ckpt" / "step-000000001" / "rank00000.safetensors")
        assert same(
            {f"model.{name}": value for name, value in run.weights().items()},
            {name: value for name, value in read.items() if name.startswith("model.")},
        )
        assert torch.equal(read["optimizer.0.weight.exp_avg"], run.optimizer.state[run.model[0].weight]["exp_avg"])


def test_steps_made_while_it_is_written_do_not_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's async_save writes later values of what is on the CPU, pytorch#144657."""
    may_write = threading.Event()
    write = store_module.write_file
    monkeypatch.setattr(store_module, "write_file", lambda *given: may_write.wait(30) and write(*given))
    with running(tmp_path / "ckpt") as run:
        train_step(run.model, run.optimizer, run.data.next())
        then = run.weights()
        run.checkpointer.save(1)
        run.checkpointer.save(2)  # the second buffer
        for _ in range(3):
            train_step(run.model, run.optimizer, run.data.next())
        assert not same(then, run.weights())
        may_write.set()
    for step in (1, 2):
        read = load_file(tmp_path / "ckpt" / f"step-{step:09d}" / "rank00000.safetensors")
        assert all(torch.equal(read[f"model.{name}"], value) for name, value in then.items())


def test_a_busy_writer_is_waited_for_or_the_checkpoint_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    may_write = threading.Event()
    write = store_module.write_file
    monkeypatch.setattr(store_module, "write_file", lambda *given: may_write.wait(30) and write(*given))
    with running(tmp_path / "ckpt", when_busy="skip") as run:
        assert [run.checkpointer.save(step) for step in (1, 2, 3)] == [True, True, False]
        may_write.set()
    assert steps(tmp_path / "ckpt") == [1, 2]
    assert "step 3 is not saved: an earlier checkpoint is still being written" in caplog.text


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.last = torch.nn.Linear(4, 4)
            self.last.weight = self.first.weight

    model = Tied()
    with Checkpointer(tmp_path / "ckpt", model=model) as checkpointer:
        checkpointer.save(1)
    assert set(load_file(tmp_path / "ckpt" / "step-000000001" / "rank00000.safetensors")) >= {"model.first.weight"}
    assert "model.last.weight" not in load_file(tmp_path / "ckpt" / "step-000000001" / "rank00000.safetensors")
    other = Tied()
    with Checkpointer(tmp_path / "ckpt", model=other) as checkpointer:
        assert checkpointer.resume() == 1
    assert torch.equal(other.last.weight, model.first.weight) and other.last.weight is other.first.weight


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_wrappers_do_not_change_names(tmp_path: Path) -> None:
    model = build("plain")
    with Checkpointer(tmp_path / "ckpt", model=torch.compile(model), optimizer=make_optimizer(model)) as checkpointer:
        checkpointer.save(1)
    names = load_file(tmp_path / "ckpt" / "step-000000001" / "rank00000.safetensors")
    assert {name for name in names if name.startswith("model.")} == {f"model.{name}" for name in model.state_dict()}
    other = build("plain")
    torch.nn.init.zeros_(other[0].weight)
    with Checkpointer(tmp_path / "ckpt", model=other, optimizer=make_optimizer(other)) as checkpointer:
        checkpointer.resume()
    assert torch.equal(other[0].weight, model[0].weight)


def test_parameters_without_a_state_stay_without_one(tmp_path: Path) -> None:
    """torch's get_optimizer_state_dict gives them one, by a step with gradients of zero."""
    with running(tmp_path / "ckpt") as run:
        run.checkpointer.save(1)  # before the first step
        assert len(run.optimizer.state) == 0
    with running(tmp_path / "ckpt") as run:
        assert run.checkpointer.resume() == 1
        assert len(run.optimizer.state) == 0


def test_several_optimizers_and_what_else_is_given(tmp_path: Path) -> None:
    model = build("plain")
    halves = {"slow": torch.optim.SGD(model[0].parameters(), lr=torch.tensor(0.1), momentum=0.9)}
    halves["fast"] = torch.optim.Adam(model[4].parameters(), amsgrad=True)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    model(torch.randn(4, 8)).sum().backward()
    for half in halves.values():
        half.step()
    averaged.update_parameters(model)
    state = {"average": averaged, "scaler": torch.amp.GradScaler("cpu", init_scale=128.0)}
    with Checkpointer(tmp_path / "ckpt", model=model, optimizer=halves, state=state) as checkpointer:
        checkpointer.save(1)
    other = build("plain")
    others = {"slow": torch.optim.SGD(other[0].parameters(), lr=torch.tensor(0.3), momentum=0.9)}
    others["fast"] = torch.optim.Adam(other[4].parameters(), amsgrad=True)
    back = {"average": torch.optim.swa_utils.AveragedModel(other), "scaler": torch.amp.GradScaler("cpu")}
    with Checkpointer(tmp_path / "ckpt", model=other, optimizer=others, state=back) as checkpointer:
        checkpointer.resume()
    assert torch.equal(others["slow"].param_groups[0]["lr"], torch.tensor(0.1))
    for one, same_one in zip(halves.values(), others.values(), strict=True):
        kept = [value for state in one.state.values() for value in state.values()]
        kept_too = [value for state in same_one.state.values() for value in state.values()]
        assert kept and all(torch.equal(a, b) for a, b in zip(kept, kept_too, strict=True))
    assert same(averaged.state_dict(), back["average"].state_dict())
    assert back["scaler"].get_scale() == 128.0


# When.


def test_it_saves_each_so_many_steps(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt", every=3, keep=9) as run:
        assert [step for step in range(1, 10) if run.checkpointer.step(step)] == [3, 6, 9]


def test_it_saves_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    pace = CheckpointTimer(lambda: now)
    saved, asked = [], 0
    for step in range(1, 3001):
        now += 5.0 if step < 3 else 0.1 if step < 2000 else 0.2  # it becomes slower
        if pace.is_asking(step):
            is_due = pace.is_due(step)
            asked += 1
            pace.tell(step, pace.propose(step, 60.0, is_saved=is_due))
            saved += [now] if is_due else []
    gaps = [later - earlier for earlier, later in zip([0.0, *saved], saved, strict=False)]
    assert len(gaps) >= 6 and all(55 < gap < 70 for gap in gaps)
    assert asked < 15 * len(saved)


def test_the_interval_may_come_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_CHECKPOINT_EVERY_S", "0.000001")
    with running(tmp_path / "ckpt") as run:
        assert sum(run.checkpointer.step(step) for step in range(1, 5))
    monkeypatch.delenv("FLATOUT_CHECKPOINT_EVERY_S")
    with running(tmp_path / "other") as run:
        assert not sum(run.checkpointer.step(step) for step in range(1, 5))


# What is kept.


def test_the_last_ones_are_kept_and_each_kth(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt", keep=2, keep_every=4) as run:
        run.train(0, 11)
    assert steps(tmp_path / "ckpt") == [4, 8, 10, 11]


def test_the_only_good_one_is_kept_whatever_comes_after_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path / "ckpt", keep=1) as run:
        run.train(0, 1)
        good = run.weights()
        os.truncate(next((tmp_path / "ckpt" / "step-000000001").glob("*.safetensors")), 50)
        run.train(1, 2)
        good = run.weights()
        # Torn by the file system after it had been committed: not what `keep` counts.
        commit = store_module.Store.commit

        def torn(self: Any, step: int, *given: Any, **options: Any) -> Any:
            manifest = commit(self, step, *given, **options)
            os.truncate(self.path(step) / "rank00000.safetensors", 50)
            return manifest

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_module.Store, "commit", torn)
            run.train(2, 5)
    assert 2 in steps(tmp_path / "ckpt")
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 2 and same(weights, good)


def test_a_step_that_is_saved_again_is_there_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "ckpt", keep=1) as run:
        run.train(0, 1)
        first = run.weights()
        rename = os.rename

        def killed(source: Path, target: Path) -> None:
            if Path(source).name.startswith(".partial"):
                raise SystemExit
            rename(source, target)

        monkeypatch.setattr(store_module.os, "rename", killed)
        train_step(run.model, run.optimizer, run.data.next())
        with pytest.raises(SystemExit):
            run.checkpointer._shared.commit(1, written_again(run), timeout_s=5, is_given_up=lambda: False)
        monkeypatch.undo()
        assert steps(tmp_path / "ckpt") == []
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 1 and same(weights, first)
    with running(tmp_path / "ckpt", keep=1) as run:
        run.checkpointer.resume()
        train_step(run.model, run.optimizer, run.data.next())
        second = run.weights()
        run.checkpointer.save(1)
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 1 and same(weights, second) and not same(first, second)
    assert not list((tmp_path / "ckpt").glob(".*"))


def written_again(run: Run) -> str:
    """Write step 1 again, without committing it; its token."""
    run.checkpointer._shared.write(1, "again", {}, {"world_size": 1, "stall_s": 0.0})
    return "again"


def test_one_that_is_refused_is_put_aside_not_counted_and_not_removed(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt", keep=1, keep_every=1) as run:
        run.train(0, 2)
    flip(tmp_path / "ckpt" / "step-000000002" / "rank00000.safetensors")
    with running(tmp_path / "ckpt", keep=1) as run:
        assert run.checkpointer.resume() == 1
        assert len(list((tmp_path / "ckpt").glob("refused-step-2-*"))) == 1
        run.train(1, 2)
    assert resumed(tmp_path / "ckpt")[0] == 2


# Damage.


def flip(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)


def tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("name", ["rank00000.safetensors", "rank00000.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, tear, Path.unlink], ids=["flipped", "torn", "missing"])
def test_the_last_good_one_is_taken_and_why_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Any
) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 2)
        good = run.weights()
        run.train(2, 3)
    damage(tmp_path / "ckpt" / "step-000000003" / name)
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 2 and same(weights, good)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1 and "step 3" in told[0] and name in told[0] and "resuming from step 2 instead" in told[0]


def test_if_none_can_be_used_it_does_not_begin_anew(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    flip(tmp_path / "ckpt" / "step-000000001" / "rank00000.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be used: step 1 .* checksum differs"):
        resumed(tmp_path / "ckpt")


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    with running(tmp_path / "ckpt") as run:
        with monkeypatch.context() as patch:
            patch.setattr(store_module.os, "listdir", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            with pytest.raises(CheckpointError, match="Input/output error"):
                run.checkpointer.resume()
        assert run.checkpointer.resume() == 1


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["TRAP"],)


def test_a_planted_pickle_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    trap = pickle.dumps(Trap())
    with running(tmp_path / "ckpt") as run:
        run.train(0, 3)
    for step, name in ((3, "rank00000.safetensors"), (2, "rank00000.json")):
        (tmp_path / "ckpt" / f"step-{step:09d}" / name).write_bytes(trap)
    (tmp_path / "ckpt" / "step-000000001" / ".metadata").write_bytes(trap)  # as torch's own reader unpickles
    (tmp_path / "ckpt" / "step-000000001" / "data.pkl").write_bytes(trap)
    with monkeypatch.context() as patch:
        for module, function in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
            patch.setattr(module, function, lambda *_, **__: pytest.fail("something was unpickled"))
        assert resumed(tmp_path / "ckpt")[0] == 1
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)
    assert (tmp_path / "sprung").exists()  # it would have worked


# Disks.


def refuse(number: int, which: str) -> Any:
    def write(path: Path, *given: Any) -> Any:
        if which in path.name:
            raise OSError(number, os.strerror(number))
        return WRITE(path, *given)

    return write


WRITE = store_module.write_file


def test_a_write_error_is_told_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
        monkeypatch.setattr(store_module, "write_file", refuse(28, "safetensors"))
        run.train(1, 2)
        monkeypatch.setattr(store_module, "write_file", WRITE)
        run.train(2, 3)
    assert "step 2 was not saved" in caplog.text and "No space left on device" in caplog.text
    assert steps(tmp_path / "ckpt") == [1, 3]
    assert not list((tmp_path / "ckpt").glob(".partial*"))
    lines = [json.loads(line) for line in (tmp_path / "ckpt" / "checkpoints.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["committed", "failed", "committed"]


def test_or_it_stops_if_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "write_file", refuse(28, "safetensors"))
    with running(tmp_path / "ckpt", on_error="raise") as run:
        assert run.checkpointer.save(1)
        run.checkpointer.wait()
        with pytest.raises(CheckpointError, match=r"step 1 was not saved .* No space left on device"):
            run.checkpointer.save(2)
        with pytest.raises(CheckpointError, match=r"step 3 was not saved .* No space left on device"):
            run.checkpointer.save(3, wait=True)


def test_a_local_folder_that_fails_does_not_keep_the_shared_one_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        store_module, "write_file", lambda path, *given: WRITE(path, *given) if "fast" not in str(path) else 1 / 0
    )
    with running(tmp_path / "ckpt", local=tmp_path / "fast") as run:
        run.train(0, 1)
    assert steps(tmp_path / "ckpt") == [1] and "step 1 was not saved to" in caplog.text


READ_ONLY = """
import os, sys, torch
from flatout.checkpoint import CheckpointError, Checkpointer
if os.geteuid() == 0:  # who may write everywhere
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
model = torch.nn.Linear(2, 2)
with Checkpointer(sys.argv[1], model=model, on_error=sys.argv[2]) as checkpointer:
    print(checkpointer.resume())
    print(checkpointer.save(7, wait=True), checkpointer.last_saved)
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["old checkpoints", "no folder"])
def test_a_folder_that_cannot_be_written_to_is_an_error_at_the_start(is_there: bool) -> None:
    with tempfile.TemporaryDirectory() as name:  # where any user may go
        folder = Path(name) / "disk"
        model = torch.nn.Linear(2, 2)
        if is_there:
            with Checkpointer(folder / "ckpt", model=model) as checkpointer:
                checkpointer.save(5)
        folder.mkdir(exist_ok=True)
        for path in [Path(name), folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)

        def train(on_error: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", READ_ONLY, str(folder / "ckpt"), on_error]
            return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

        try:
            done, stopped = train("warn"), train("raise")
        finally:
            for path in [Path(name), *folder.rglob("*"), folder]:
                path.chmod(0o755)
    for ended in (done, stopped):
        assert (ended.returncode, ended.stdout) == (1, "")
        assert "CheckpointError" in ended.stderr and "cannot be written to: permission denied" in ended.stderr


# Two tiers.


def test_the_local_folder_is_written_each_time_and_the_shared_one_each_kth(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt", local=tmp_path / "fast", shared_every=2, keep=9) as run:
        run.train(0, 5)
        last = run.weights()
    assert steps(tmp_path / "fast") == [1, 2, 3, 4, 5] and steps(tmp_path / "ckpt") == [2, 4]
    step, weights = resumed(tmp_path / "ckpt", local=tmp_path / "fast")
    assert step == 5 and same(weights, last)


def test_a_lost_or_damaged_local_folder_costs_only_what_is_newer_in_it(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt", local=tmp_path / "fast", shared_every=2) as run:
        run.train(0, 5)
    flip(tmp_path / "fast" / "step-000000005" / "rank00000.safetensors")
    flip(tmp_path / "fast" / "step-000000004" / "rank00000.safetensors")
    assert resumed(tmp_path / "ckpt", local=tmp_path / "fast")[0] == 4  # of the shared one
    assert resumed(tmp_path / "ckpt", local=tmp_path / "other")[0] == 4


# What is refused.


def test_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    for model, what in (
        (build("plain", width=16), "`model.0.weight` has the shape [32, 8] in the checkpoint and [16, 8] in the model"),
        (build("plain")[:4], "the checkpoint has `model.4.bias` (and 3 more), which the model does not have"),
        (torch.nn.Sequential(*build("plain"), torch.nn.Linear(1, 1)), "the model has `model.6.bias` (and 1 more)"),
    ):
        with Checkpointer(tmp_path / "ckpt", model=model) as checkpointer, pytest.raises(CheckpointError) as caught:
            checkpointer.resume()
        assert what in str(caught.value) and "\n" not in str(caught.value)


def test_another_optimizer_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    model = build("plain")
    groups = [torch.optim.AdamW(model.parameters()), torch.optim.AdamW(model[0].parameters())]
    for optimizer, what in (
        (groups[0], "different parameters or groups"),
        (groups[1], "`optimizer"),
        (None, "opt"),
    ):
        with Checkpointer(tmp_path / "ckpt", model=model, optimizer=optimizer) as checkpointer:
            if optimizer is None:
                assert checkpointer.resume() == 1  # to fine-tune, say
                continue
            with pytest.raises(CheckpointError, match=what):
                checkpointer.resume()


def test_a_folder_of_another_training_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    with running(tmp_path / "ckpt") as run, pytest.raises(CheckpointError, match=r"resume\(\) was not called"):
        run.checkpointer.save(1)


def test_what_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    class Holder:
        def state_dict(self) -> dict[str, object]:
            return {"function": len}

        def load_state_dict(self, state: object) -> None: ...

    model = build("plain")
    for options, what in (
        ({"state": {"mine": Holder()}}, "`mine.function` is a builtins.builtin_function_or_method"),
        ({"state": {"mine": 3}}, "`mine` is a int without state_dict"),
        ({"state": {"model": Holder()}}, "`model` cannot be the name"),
        ({"keep": 0}, "`keep` must be at least 1, but is 0"),
    ):
        with pytest.raises(CheckpointError, match=what.replace("(", r"\(")):
            Checkpointer(tmp_path / "ckpt", model=model, **options)
    with pytest.raises(CheckpointError, match="on the meta device"):
        Checkpointer(tmp_path / "ckpt", model=torch.nn.Linear(2, 2, device="meta"))
    assert not (tmp_path / "ckpt").exists()


def test_a_newer_format_is_not_guessed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "VERSION", 9)
        with running(tmp_path / "ckpt") as run:
            run.train(0, 1)
    with pytest.raises(CheckpointError, match="has format version 9"):
        resumed(tmp_path / "ckpt")
