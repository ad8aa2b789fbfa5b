"""One line in a training script that traces a few steps on every rank, for those who prefer that to `flatout profile`.

    Trainer(..., callbacks=[flatout.callbacks.for_transformers("traces")])   Hugging Face
    Trainer(..., callbacks=[flatout.callbacks.for_lightning("traces")])      Lightning
    model.fit(..., callbacks=[flatout.callbacks.for_keras("traces")])        Keras on torch
    flatout.callbacks.watch(optimizer, "traces")   Accelerate, Ray Train, and any loop with an optimizer of torch

After `warmup` steps, `steps` are traced by the PyTorch profiler into one file for each rank. With `log_to`, the first
rank then diagnoses them and logs the result to the tracker whose run is active. Nothing here raises into the job: a
problem is printed once, and the training continues.

`report_loss(value)` gives the loss of a step to `flatout tune jax`, and does nothing without it.
"""

from __future__ import annotations

from flatout.callbacks.frameworks import for_keras, for_lightning, for_transformers
from flatout.callbacks.losses import report_loss
from flatout.callbacks.recorder import Recorder, watch

__all__ = ["Recorder", "for_keras", "for_lightning", "for_transformers", "report_loss", "watch"]
