"""A trace from inside a training: as many steps as asked for, on time, and never an exception into the job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.api import diagnose
from flatout.callbacks import Recorder, watch

torch = pytest.importorskip("torch")


def train(optimizer: object, layer: object, num_steps: int) -> None:
    for _ in range(num_steps):
        optimizer.zero_grad()
        layer(torch.ones(2, 4)).pow(2).mean().backward()
        optimizer.step()


def test_a_watched_optimizer_is_traced_and_diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    recorder = watch(SimpleNamespace(optimizer=optimizer), tmp_path / "traces", steps=2, warmup=3)
    train(optimizer, layer, 5)
    assert not recorder.trace.exists()  # 3 steps of warm-up, 1 of the profiler's, 2 that are traced
    train(optimizer, layer, 3)
    assert recorder.problem is None
    assert capsys.readouterr().err == f"flatout: traced 2 steps; next: flatout diagnose {tmp_path / 'traces'}\n"
    assert diagnose(tmp_path / "traces").job.num_steps == 2


def test_a_failure_is_printed_once_and_the_training_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    recorder = Recorder(tmp_path / "file" / "traces", warmup=1)
    for _ in range(5):
        recorder.step()
    recorder.close()
    said = capsys.readouterr().err
    assert said.startswith("flatout: nothing more is recorded: NotADirectoryError")
    assert len(said.splitlines()) == 1
    assert isinstance(recorder.problem, NotADirectoryError)


def test_a_trace_is_replaced_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace-0.json.gz").write_bytes(b"kept")
    recorder = Recorder(tmp_path, warmup=1)
    recorder.step()
    assert "exists: pass another folder, or force=True" in capsys.readouterr().err
    assert (tmp_path / "trace-0.json.gz").read_bytes() == b"kept"


def test_a_training_that_is_too_short_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path, steps=3, warmup=10)
    for _ in range(4):
        recorder.step()
    recorder.close()
    said = "flatout: no trace of rank 0: the training had 4 steps, and a trace needs 14\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("arguments", [{"steps": 0}, {"warmup": 0}, {"log_to": "excel"}])
def test_a_wrong_argument_is_refused_before_the_training(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Recorder(tmp_path, **arguments)
