"""A data-parallel JAX training with many small gradients, which marks its steps and reports its losses.

    XLA_FLAGS=--xla_gpu_all_reduce_combine_threshold_bytes=0 flatout tune jax --only xla-combine=128 -- \\
        python benchmarks/jax_gradients_job.py --out {trial_dir}

Each layer has its own weights, so without XLA's combining the step has one all-reduce for each layer. The job writes
how many all-reduces the compiled step has, which `jax_changes_gpu.py` keeps as a check of what a flag did.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from flatout.callbacks import report_loss
except ImportError:  # Flatout is not installed beside JAX

    def report_loss(value: float) -> None:
        del value


Weights = list[jax.Array]

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, help="a folder for the number of all-reduces")
parser.add_argument("--layers", type=int, default=96)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--rows", type=int, default=512)
parser.add_argument("--steps", type=int, default=100_000)
options = parser.parse_args()


def loss_of(weights: Weights, rows: jax.Array) -> jax.Array:
    for weight in weights:
        rows = rows + jnp.tanh(rows @ weight)
    return jnp.mean(rows**2)


def train_step(weights: Weights, rows: jax.Array) -> tuple[Weights, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(weights, rows)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)], loss


mesh = Mesh(np.array(jax.devices()), ("data",))
replicated, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
random = np.random.default_rng(0)
scale = 0.1 / options.width**0.5
shapes = [(options.width, options.width)] * options.layers
weights = jax.device_put([random.standard_normal(shape, np.float32) * scale for shape in shapes], replicated)
rows = jax.device_put(random.standard_normal((options.rows, options.width), np.float32), sharded)

in_shardings, out_shardings = (replicated, sharded), (replicated, replicated)
step_of_devices = jax.jit(train_step, in_shardings=in_shardings, out_shardings=out_shardings)
compiled = step_of_devices.lower(weights, rows).compile()
if options.out is not None:
    program = compiled.as_text()
    num_all_reduces = program.count(" all-reduce(") + program.count(" all-reduce-start(")
    (options.out / "all_reduces.json").write_text(json.dumps(num_all_reduces))

for step in range(options.steps):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights, loss = compiled(weights, rows)
        report_loss(float(loss))
