"""Tiny trainings with known gradients: linear regression over several ranks, right and wrong in known ways.

Each rank has data of its own; the right step uses the mean of all ranks' gradients. Losses are those that a trial has:
of each step the mean over the ranks, before the update. Gradients are those that a step applies.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from flatout.records.change import Change, ChangeSet, Knob, Safety
from flatout.records.trial import BASELINE, GradientNorms, TrialResult

NUM_RANKS, BATCH, WIDTH = 4, 16, 20
NUM_CHECKED = 5  # steps whose gradients are kept
Fault = Literal[
    "none", "no sync", "one rank left out", "sum for mean", "twice", "half", "stale", "frozen", "wrong sign"
]
FAULTS: tuple[Fault, ...] = (
    "no sync",
    "one rank left out",
    "sum for mean",
    "twice",
    "half",
    "stale",
    "frozen",
    "wrong sign",
)


class Trained(NamedTuple):
    losses: tuple[float, ...]
    gradients: tuple[GradientNorms, ...]  # of the first steps


def losses(fault: Fault = "none", **how: Any) -> tuple[float, ...]:
    return train(fault, **how).losses


@cache
def train(
    fault: Fault = "none",
    *,
    seed: int = 0,
    num_steps: int = 30,
    rate: float = 0.02,
    float_noise: float = 0.0,
    noise_seed: int = 0,
    resample_seed: int | None = None,
    max_norm: float | None = None,
) -> Trained:
    """`float_noise`: relative, on each gradient, as sums in another order give; `resample_seed`: other samples;
    `max_norm`: each rank clips its gradient.
    """
    start, noise = np.random.default_rng(seed), np.random.default_rng(noise_seed)
    start.normal(size=WIDTH)  # the truth, see `_data`
    data = _data(seed, seed + 1 if resample_seed is None else 1000 + resample_seed, num_steps)
    weights = np.repeat(start.normal(size=(1, WIDTH)), NUM_RANKS, axis=0)
    before = np.zeros_like(weights)
    found: list[float] = []
    used: list[np.ndarray] = []
    unclipped: list[np.ndarray] = []
    for step, (inputs, targets) in enumerate(data):
        errors = np.einsum("rbw,rw->rb", inputs, weights) - targets
        # `np.mean` does the same as these sums, but takes longer to begin than these few numbers to add.
        found.append(float(np.add.reduce(errors**2, axis=None) / errors.size) * (1 + float_noise * noise.normal()))
        own = 2 * np.einsum("rb,rbw->rw", errors, inputs) / BATCH
        own *= 1 + float_noise * noise.normal(size=own.shape)
        mean = np.add.reduce(own, axis=0, keepdims=True) / NUM_RANKS
        gradient = _applied(fault, own, mean, before)
        before = mean
        if max_norm is not None or step < NUM_CHECKED:
            gradient = np.broadcast_to(gradient, weights.shape)
            of_ranks = np.linalg.norm(gradient, axis=1)
            unclipped.append(of_ranks)
            if max_norm is not None:
                gradient = gradient * np.minimum(1.0, max_norm / (of_ranks + 1e-6))[:, None]
            used.append(np.linalg.norm(gradient, axis=1))
        weights = weights - rate * gradient
    first = np.array(used[:NUM_CHECKED])
    return Trained(tuple(found), (_norms(first, np.array(unclipped[:NUM_CHECKED]) if max_norm is not None else None),))


@cache
def _data(seed: int, samples_seed: int, num_steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets of each step, by the truth of that seed."""
    truth = np.random.default_rng(seed).normal(size=WIDTH)
    samples = np.random.default_rng(samples_seed)
    steps = []
    for _ in range(num_steps):
        inputs = samples.normal(size=(NUM_RANKS, BATCH, WIDTH))
        targets = inputs @ truth + samples.normal(scale=0.5, size=(NUM_RANKS, BATCH))
        steps.append((inputs, targets))
    return steps


def _applied(fault: Fault, own: np.ndarray, mean: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The gradient that each rank's step applies: `own` has one row a rank, `mean` and `before` have one row."""
    match fault:
        case "none":
            return mean
        case "no sync":
            return own
        case "one rank left out":
            left: np.ndarray = own[:-1].mean(axis=0, keepdims=True)
            return left
        case "sum for mean":
            return NUM_RANKS * mean
        case "twice":
            return 2 * mean
        case "half":
            return 0.5 * mean
        case "stale":
            return before
        case "frozen":
            return 0 * mean
        case "wrong sign":
            return -mean


def _norms(of_ranks: np.ndarray, unclipped: np.ndarray | None) -> GradientNorms:
    """As read from a trial of one parameter; steps x ranks."""
    both = of_ranks if unclipped is None else np.concatenate([of_ranks, unclipped])
    most, least = both.max(axis=1), both.min(axis=1)
    spreads = [float((high - low) / high) for high, low in zip(most, least, strict=True) if high > 0]
    return GradientNorms(
        num_parameters=1,
        norms=_of_all(of_ranks),
        unclipped=() if unclipped is None else _of_all(unclipped),
        without=(0,) if (most == 0).mean() > 0.5 else (),
        faint=(0,) if (most == 0).any() else (),
        rank_spread=max(spreads, default=None),
    )


def _of_all(of_ranks: np.ndarray) -> tuple[float, ...]:
    return tuple(np.sqrt((of_ranks**2).mean(axis=1)).tolist())


def trial(
    values: tuple[float, ...],
    *,
    index: int = 0,
    memory: int | None = None,
    gradients: tuple[GradientNorms, ...] = (),
) -> TrialResult:
    return TrialResult(
        index=index,
        arm=BASELINE,
        outcome="completed",
        step_s=(0.1,) * 5,
        losses=values,
        gradients=gradients,
        peak_memory_bytes=memory,
    )


def changes(safety: Safety = "exact", family: str = "ddp") -> ChangeSet:
    knob = Knob(name=f"{family}-knob", family=family, summary="", safety=safety, doc="", source="")
    return ChangeSet(changes=(Change(name=knob.name, knob=knob),))
