"""Results in real stores, read back with the store's own reader: MLflow's server, W&B's offline file, TensorBoard's."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout.callbacks
from flatout.api import diagnose
from flatout.run_trackers.stores import SUMMARY_TAG
from flatout.run_trackers.values import logged_values

ROOT = Path(__file__).parents[2]
STRAGGLER = ROOT / "examples/traces/straggler.tar.xz"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return diagnose(STRAGGLER).to_dict()


@pytest.fixture(scope="module")
def result(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("result") / "diagnosis.json"
    path.write_text(json.dumps(record))
    return path


def log(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "flatout", "log", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server on the loopback interface, with its own database."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with (folder / "server.log").open("w") as output:
        process = subprocess.Popen([*command, *stores], stdout=output, stderr=output, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield url
    finally:
        import os
        import signal

        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def test_mlflow(server: str, result: Path, record: dict[str, Any]) -> None:
    from mlflow import MlflowClient

    said = log(result, "--mlflow", server, "--experiment", "jobs", "--step", "7")
    run_id = said.split("logged to run ")[1].split(" ")[0]
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(run_id)
    values = logged_values(record)
    assert run.data.metrics == pytest.approx(values.numbers)
    assert values.tags.items() <= run.data.tags.items()
    assert client.get_metric_history(run_id, "flatout/step_s")[0].step == 7
    assert client.get_experiment(run.info.experiment_id).name == "jobs"
    assert [file.path for file in client.list_artifacts(run_id, "flatout")] == ["flatout/result.json"]
    log(result, "--mlflow", server, "--run-id", run_id)
    assert len(client.get_metric_history(run_id, "flatout/step_s")) == 2


def test_a_callback_logs_to_the_active_run_of_mlflow(server: str, tmp_path: Path) -> None:
    import mlflow

    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    mlflow.set_tracking_uri(server)
    mlflow.set_experiment("with-callback")
    with mlflow.start_run() as run:
        recorder = flatout.callbacks.watch(optimizer, tmp_path / "traces", steps=2, warmup=3, log_to="mlflow")
        for _ in range(10):
            optimizer.zero_grad()
            layer(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
    assert recorder.problem is None
    metrics = mlflow.MlflowClient(tracking_uri=server).get_run(run.info.run_id).data.metrics
    assert metrics["flatout/step_s"] > 0
    assert "flatout/parts.compute" in metrics


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a W&B file: a header of 7 bytes, then blocks of 32 KiB of LevelDB's log format."""
    block, at, whole = 32 * 1024, 7, b""
    while at + 7 <= len(content):
        left = block - at % block
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def test_wandb_offline(result: Path, record: dict[str, Any], tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    log(result, "--wandb", tmp_path)
    (file,) = tmp_path.rglob("*.wandb")
    logged: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for data in wandb_records(file.read_bytes()):
        one = Record.FromString(data)
        for item in one.history.item:
            logged[item.key or item.nested_key[0]] = json.loads(item.value_json)
        for item in one.summary.update:
            summary[item.key or item.nested_key[0]] = json.loads(item.value_json)
    values = logged_values(record)
    assert {name: logged[name] for name in values.numbers} == pytest.approx(values.numbers)
    assert summary["flatout.findings"] == values.tags["flatout.findings"]
    assert summary[SUMMARY_TAG] == values.summary


def test_tensorboard(result: Path, record: dict[str, Any], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log(result, "--tensorboard", tmp_path, "--step", "7")
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = logged_values(record)
    read = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert read == pytest.approx(values.numbers, rel=1e-6)
    assert events.Scalars("flatout/step_s")[0].step == 7
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert texts[f"{SUMMARY_TAG}/text_summary"] == values.summary
