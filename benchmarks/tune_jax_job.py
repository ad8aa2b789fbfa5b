"""A small JAX training that marks its steps and reports its losses, for `flatout tune jax`.

    XLA_FLAGS=--xla_backend_optimization_level=0 flatout tune jax --allow rounding --budget 6m --steps 20 -- \\
        VENV/bin/python benchmarks/tune_jax_job.py

The flag is the planted cause: the compiled code is not optimized. `benchmarks/results/tune_jax_cpu.json` is one result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

try:
    from flatout.callbacks import report_loss
except ImportError:  # Flatout is not installed beside JAX

    def report_loss(value: float) -> None:
        del value


WIDTH, ROWS, LAYERS, STEPS = 256, 384, 6, 4000


def loss_of(weights: jax.Array, rows: jax.Array) -> jax.Array:
    for _ in range(LAYERS):
        rows = jnp.tanh(rows @ weights) + 0.1 * jnp.sin(rows) * jnp.exp(-(rows**2))
    return jnp.mean(rows**2)


@jax.jit
def train_step(weights: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(weights, rows)
    return weights - 0.1 * gradient, loss


weights = jnp.eye(WIDTH) * 0.5
rows = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))
for step in range(STEPS):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights, loss = train_step(weights, rows)
        report_loss(float(loss))
