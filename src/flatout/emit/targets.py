"""The targets by name, as `flatout emit --to NAME` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.emit import (
    accelerate,
    deepspeed,
    environment,
    kubernetes,
    lightning,
    ray_job,
    slurm,
    snippet,
    torchrun,
    tuned_toml,
)
from flatout.records.tuning import Emitted, Tuning

TARGETS: Mapping[str, Callable[[Tuning], Emitted]] = {
    "tuned-toml": tuned_toml.emit,
    "environment": environment.emit,
    "torchrun": torchrun.emit,
    "slurm": slurm.emit,
    "kubernetes": kubernetes.emit,
    "ray-job": ray_job.emit,
    "snippet": snippet.emit,
    "deepspeed": deepspeed.emit,
    "accelerate": accelerate.emit,
    "lightning": lightning.emit,
}
