"""A training that carries float noise far: a deep network whose learning rate lets its loss rise at first.

Its truth is known by construction: the same samples and weights, gradients that are right or wrong in known ways, and
noise as of sums in another order.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

WIDTH, DEPTH, CLASSES, BATCH = 48, 6, 10, 64


class Unstable(NamedTuple):
    losses: tuple[float, ...]
    norms: tuple[float, ...]  # of the gradients that each step uses


@cache
def train(
    *,
    rate: float = 3.0,
    scale: float = 1.0,
    stale: bool = False,
    float_noise: float = 0.0,
    disturbed: float = 0.0,
    noise_seed: int = 0,
    num_steps: int = 24,
) -> Unstable:
    """`scale`: of each gradient; `stale`: each step uses the gradient of the step before; `float_noise`: relative, on
    each gradient and activation; `disturbed`: the same on the weights, once, after the first update.
    """
    start, noise = np.random.default_rng(1), np.random.default_rng(noise_seed)
    widths = [WIDTH] * DEPTH + [CLASSES]
    weights = [start.normal(size=(WIDTH, out)) * np.sqrt(2 / WIDTH) for out in widths]
    speeds = [np.zeros_like(weight) for weight in weights]
    before: list[np.ndarray] | None = None
    losses, norms = [], []
    for step in range(num_steps):
        inputs, labels = start.normal(size=(BATCH, WIDTH)), start.integers(0, CLASSES, BATCH)
        loss, gradients = _step(weights, inputs, labels, float_noise, noise)
        losses.append(loss)
        used = before if stale and before is not None else gradients
        norms.append(scale * float(np.sqrt(sum((gradient**2).sum() for gradient in used))))
        before = gradients
        speeds = [0.9 * speed + scale * gradient for speed, gradient in zip(speeds, used, strict=True)]
        weights = [weight - rate * speed for weight, speed in zip(weights, speeds, strict=True)]
        if step == 0 and disturbed:
            weights = [weight * (1 + disturbed * noise.uniform(-1, 1, weight.shape)) for weight in weights]
    return Unstable(tuple(losses), tuple(norms))


def _step(
    weights: list[np.ndarray], inputs: np.ndarray, labels: np.ndarray, float_noise: float, noise: np.random.Generator
) -> tuple[float, list[np.ndarray]]:
    """Return the loss of a batch and its gradients, of layers that are normalised over the batch."""

    def rounded(values: np.ndarray) -> np.ndarray:
        return values * (1 + float_noise * noise.normal(size=values.shape)) if float_noise else values

    kept, values = [], inputs
    for weight in weights[:-1]:
        sums = rounded(values @ weight)
        spread = sums.std(axis=0) + 1e-5
        normal = (sums - sums.mean(axis=0)) / spread
        kept.append((values, normal, spread))
        values = np.maximum(normal, 0)
    scores = rounded(values @ weights[-1])
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    loss = float(-np.log(shares[np.arange(BATCH), labels] + 1e-30).mean())
    back = (shares - np.eye(CLASSES)[labels]) / BATCH
    gradients = [rounded(values.T @ back)]
    back = back @ weights[-1].T
    for weight, (values, normal, spread) in zip(weights[-2::-1], kept[::-1], strict=True):
        back = back * (normal > 0)
        back = (back - back.mean(axis=0) - normal * (back * normal).mean(axis=0)) / spread
        gradients.append(rounded(values.T @ back))
        back = back @ weight.T
    return loss, gradients[::-1]
