"""One process of a JAX job with a planted cause, recorded by `jax.profiler`: see `jax_labelled_jobs.py`.

    python benchmarks/jax_labelled_job.py RANK WORLD PORT CAUSE FOLDER

It runs on CPUs over gloo, or with JAX_PLATFORMS=cuda on one GPU per process over NCCL.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SLOW_RANK = 1
DELAY_S = 0.06
WARM_UP, STEPS = 3, 6
# A step computes for about 0.1 s on a core or on a GPU. The extra work is products of matrices of 4 * WIDTH.
IS_ON_GPU = os.environ.get("JAX_PLATFORMS") == "cuda"
WIDTH, LAYERS, BATCH, EXTRA_PRODUCTS = (4096, 48, 4096, 8) if IS_ON_GPU else (256, 12, 1024, 4)

rank, world, port, cause, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])
is_slow = rank == SLOW_RANK
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", world, rank, local_device_ids=[rank] if IS_ON_GPU else None)
mesh = Mesh(np.array(jax.devices()), ("data",))
replicated, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def loss_of(weights: list[jax.Array], batch: jax.Array) -> jax.Array:
    for layer in range(LAYERS):
        batch = jnp.tanh(batch @ weights[layer % len(weights)])
    return jnp.mean(batch**2)


def update(weights: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
    gradients = jax.grad(loss_of)(weights, batch)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


def products(matrix: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, EXTRA_PRODUCTS, lambda _, total: jnp.tanh(total @ matrix), matrix)


train_step = jax.jit(update, in_shardings=(replicated, sharded), out_shardings=replicated)
extra_work = jax.jit(products)


class Batches:
    """An iterator over batches; on the slow rank each takes a while, if that is the planted cause."""

    def __init__(self) -> None:
        random = np.random.default_rng(rank)
        self._rows = random.standard_normal((BATCH // world, WIDTH), dtype=np.float32)

    def __iter__(self) -> Iterator[jax.Array]:
        return self

    def __next__(self) -> jax.Array:
        if cause == "slow-input" and is_slow:
            time.sleep(DELAY_S)
        return jax.make_array_from_process_local_data(sharded, self._rows)


def other_work() -> None:
    """Do on the host what is neither input nor computation, such as writing a log to a slow disk."""
    time.sleep(DELAY_S)


weights = jax.device_put([jnp.eye(WIDTH) * 0.5 for _ in range(2)], replicated)
matrix = jax.device_put(jnp.eye(4 * WIDTH) * 0.5, jax.local_devices()[0])
batches = Batches()
for step in range(WARM_UP + STEPS):
    if step == WARM_UP:
        jax.profiler.start_trace(str(folder / f"rank{rank}"))
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        batch = next(batches)
        if cause == "late-start" and is_slow:
            other_work()
        if cause == "slow-compute" and is_slow:
            extra_work(matrix).block_until_ready()
        weights = train_step(weights, batch)
        jax.block_until_ready(weights)
jax.profiler.stop_trace()
jax.distributed.shutdown()
