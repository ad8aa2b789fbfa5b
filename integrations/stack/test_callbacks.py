"""The callbacks in trainers of today's versions: each writes a trace that `diagnose` reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from tests.ray_nodes import started_cluster

import flatout.callbacks
from flatout.api import diagnose
from flatout.read import open_sources, read_trace

os.environ.setdefault("KERAS_BACKEND", "torch")


def traced_steps(folder: Path) -> int:
    """Return how many steps each trace has; a diagnosis may leave out a first step that takes much longer."""
    with open_sources([folder]) as sources:
        tables = [read_trace(source) for source in sources]
    counts = {sum(table.names[code].startswith("ProfilerStep#") for code in table.name) for table in tables}
    assert len(counts) == 1
    return counts.pop()


def test_hugging_face(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=100
    )
    rows = [{"input_ids": torch.randint(0, 100, (8,)), "labels": torch.tensor(i % 2)} for i in range(64)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=2, max_steps=20, report_to=[], use_cpu=True
    )
    callback = flatout.callbacks.for_transformers(tmp_path / "traces", steps=3, warmup=5)
    Trainer(
        model=BertForSequenceClassification(config), args=arguments, train_dataset=rows, callbacks=[callback]
    ).train()
    assert traced_steps(tmp_path / "traces") == 3


def test_lightning(tmp_path: Path) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback = flatout.callbacks.for_lightning(tmp_path / "traces", steps=3, warmup=5)
    trainer = lightning.Trainer(
        max_steps=20, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback],
        enable_progress_bar=False, accumulate_grad_batches=2,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(200, 4), batch_size=2))
    assert traced_steps(tmp_path / "traces") == 3


def test_keras(tmp_path: Path) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = flatout.callbacks.for_keras(tmp_path / "traces", steps=3, warmup=5)
    model.fit(np.zeros((64, 4)), np.zeros((64, 1)), batch_size=2, epochs=1, verbose=0, callbacks=[callback])
    assert traced_steps(tmp_path / "traces") == 3


ENDS_LATER = Path(__file__).parents[2] / "tests" / "jobs" / "ends_later.py"  # at once, gloo may abort it
ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
import flatout.callbacks

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
flatout.callbacks.watch(optimizer, sys.argv[1], steps=3, warmup=5)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
"""


def test_accelerate_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ACCELERATE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(ENDS_LATER)]
    done = subprocess.run([*launch, str(script), str(tmp_path / "traces")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("flatout: traced 3 steps; next: flatout diagnose") == 1
    result = diagnose(tmp_path / "traces")
    assert result.job.num_ranks == 2
    assert traced_steps(tmp_path / "traces") == 3


def test_ray_train_on_two_workers(tmp_path: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train(config: dict[str, str]) -> None:
        import torch
        from ray.train.torch import prepare_model

        import flatout.callbacks

        model = prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        flatout.callbacks.watch(optimizer, config["traces"], steps=3, warmup=5)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()

    cluster = started_cluster(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        TorchTrainer(
            train,
            train_loop_config={"traces": str(tmp_path / "traces")},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray"), name="job"),
        ).fit()
    finally:
        ray.shutdown()
        cluster.shutdown()
    result = diagnose(tmp_path / "traces")
    assert result.job.num_ranks == 2
    assert traced_steps(tmp_path / "traces") == 3
