"""What hooks make of known gradients of three gloo ranks, beside the published rules written out in numpy."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.inside.gradient_hooks.gradients import DECAY, MOMENTUM, STEPS, build
from tests.inside.patches.runs import run

from flatout.change.ddp import COMPRESSION

pytestmark = pytest.mark.usefixtures("warm")

RANKS = 3
HOOKS = {
    "bf16": {"hook": "bf16"},
    "fp16": {"hook": "fp16"},
    "int8": {"hook": "int8"},
    "topk": {"hook": "topk", "percent": 10},
    "momentum": {"hook": "topk", "percent": 10, "momentum": True},
    "powersgd": {"hook": "powersgd", "rank": 2, "start": 2},
    **{f"broken-{name}": {"hook": name, "is_broken": True} for name in ("bf16", "int8", "topk", "powersgd")},
}
LARGE = ("0.weight", "2.weight")  # more than 1,024 entries
Gradients = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Path:
    made: Path = tmp_path_factory.mktemp("gradients")
    job = Path(__file__).with_name("gradients.py")
    done = run(made / "recording", made, json.dumps(HOOKS), job=job, ranks=RANKS)
    assert done.code == 0, done.errors
    return made


def own(folder: Path, hook: str, step: int) -> list[Gradients]:
    return [np.load(folder / f"{hook}-{rank}-{step}-own.npz") for rank in range(RANKS)]


def reduced(folder: Path, hook: str, step: int) -> Gradients:
    """Return the reduced gradients, which all ranks have to the bit."""
    first, *others = [np.load(folder / f"{hook}-{rank}-{step}-reduced.npz") for rank in range(RANKS)]
    for other in others:
        for name in first:
            assert np.array_equal(first[name], other[name], equal_nan=True)
    return first


def mean(gradients: list[Gradients], name: str) -> np.ndarray:
    return sum(each[name].astype(np.float64) for each in gradients) / RANKS


def test_what_each_compression_takes_is_measured_without_a_network() -> None:
    command = [sys.executable, "-m", "flatout.inside.gradient_hooks.codec_time", "cpu", "2", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    times = json.loads(done.stdout)
    assert times.keys() == set(COMPRESSION.valid.choices)
    assert all(0 < each < 500 for each in times.values())
    assert times["int8"] > times["bf16"], "a dozen passes over the gradients, not one"


@pytest.mark.parametrize(("hook", "bits"), [("bf16", 8), ("fp16", 11)])
def test_half_precision_is_within_its_rounding(folder: Path, hook: str, bits: int) -> None:
    """Each gradient is rounded, and so is each of the sums."""
    for step in range(STEPS):
        gradients = own(folder, hook, step)
        for name, values in reduced(folder, hook, step).items():
            magnitude = sum(np.abs(each[name]) for each in gradients) / RANKS
            error = np.abs(values - mean(gradients, name))
            assert np.all(error <= (RANKS + 1) * 2.0**-bits * magnitude + 1e-7)
            assert np.any(error > 0)


def test_int8_is_within_half_a_step_of_each_block_twice(folder: Path) -> None:
    """Once for each rank's gradient, once for the mean."""
    for step in range(STEPS):
        gradients = own(folder, "int8", step)
        for name, values in reduced(folder, "int8", step).items():
            expected = mean(gradients, name).ravel()
            blocks = [slice(start, start + 256) for start in range(0, expected.size, 256)]
            for block in blocks:
                largest = max(np.abs(each[name].ravel()[block]).max() for each in gradients)
                error = np.abs(values.ravel()[block] - expected[block])
                assert np.all(error <= 2 * largest / 254 * 1.01)


def test_top_k_sends_the_largest_and_adds_the_rest_to_the_next_step(folder: Path) -> None:
    errors = [dict.fromkeys(LARGE, 0.0) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = own(folder, "topk", step)
        values = reduced(folder, "topk", step)
        for name in values:
            expected = mean(gradients, name)
            if step > 0 and name in LARGE:
                expected = np.zeros_like(expected)
                for rank in range(RANKS):
                    whole = gradients[rank][name] + errors[rank][name]
                    sent = largest_of(whole, 0.1)
                    expected += np.where(sent, whole, 0) / RANKS
                    errors[rank][name] = np.where(sent, 0, whole)
            assert np.allclose(values[name], expected, rtol=1e-5, atol=1e-7), (step, name)


def test_momentum_is_applied_before_entries_are_chosen(folder: Path) -> None:
    """Deep Gradient Compression, algorithm 4, with the weight decay of SGD in the gradient."""
    weights = {name: parameter.detach().numpy() for name, parameter in build().named_parameters()}
    velocities = [dict.fromkeys(weights, 0.0) for _ in range(RANKS)]
    errors = [dict.fromkeys(weights, 0.0) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = own(folder, "momentum", step)
        values = reduced(folder, "momentum", step)
        for name, weight in weights.items():
            expected = np.zeros_like(weight)
            for rank in range(RANKS):
                velocity = MOMENTUM * velocities[rank][name] + gradients[rank][name] + DECAY * weight
                whole = errors[rank][name] + velocity
                sent = largest_of(whole, 0.1) if name in LARGE else np.full(weight.shape, fill_value=True)
                expected += np.where(sent, whole, 0) / RANKS
                errors[rank][name] = np.where(sent, 0, whole)
                velocities[rank][name] = np.where(sent, 0, velocity) if name in LARGE else velocity
            assert np.allclose(values[name], expected, rtol=1e-4, atol=1e-7), (step, name)


def largest_of(values: np.ndarray, share: float) -> np.ndarray:
    order = np.argsort(-np.abs(values).ravel())
    sent = np.zeros(values.size, dtype=bool)
    sent[order[: ceil(share * values.size)]] = True
    return sent.reshape(values.shape)


def test_powersgd_projects_on_the_columns_that_it_has_found(folder: Path) -> None:
    """Vogels et al., algorithm 1, from the second step on; one step of the power method for each."""
    factors = {}
    errors = [dict.fromkeys(LARGE, 0.0) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = own(folder, "powersgd", step)
        values = reduced(folder, "powersgd", step)
        for name in values:
            expected = mean(gradients, name)
            if step >= 2 and name in LARGE:
                matrices = [gradients[rank][name] + errors[rank][name] for rank in range(RANKS)]
                factor = factors.get(name)
                if factor is None:
                    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                    factor = torch.randn(expected.shape[1], 2, generator=generator).numpy()
                left, _ = np.linalg.qr(sum(matrix @ factor for matrix in matrices) / RANKS)
                factors[name] = sum(matrix.T @ left for matrix in matrices) / RANKS
                expected = left @ factors[name].T
                for rank in range(RANKS):
                    errors[rank][name] = matrices[rank] - expected
            assert np.allclose(values[name], expected, rtol=1e-3, atol=1e-6), (step, name)


@pytest.mark.parametrize("hook", ["bf16", "int8", "topk", "powersgd"])
def test_an_overflow_is_seen_in_its_step_and_forgotten_after_it(folder: Path, hook: str) -> None:
    """A gradient scaler leaves such a step out; what a hook keeps must not repeat it."""
    assert not all(np.isfinite(values).all() for values in reduced(folder, f"broken-{hook}", 1).values())
    for step in (0, 2, 3):
        assert all(np.isfinite(values).all() for values in reduced(folder, f"broken-{hook}", step).values())


def test_local_trainings_continue_from_the_mean_of_their_weights(folder: Path) -> None:
    """The ranks add 0, 1 and 2: 1 on average."""
    for rank in range(RANKS):
        weights = json.loads((folder / f"weights-{rank}.json").read_text())["average"]
        before, after = zip(*weights, strict=True)
        assert before == pytest.approx([10 + rank, 11 + rank, 12 + rank])
        assert after == pytest.approx([11, 12, 13])


def test_diloco_takes_nesterov_steps_along_what_the_ranks_have_changed(folder: Path) -> None:
    """torch's own SGD is the outer optimizer, and minus the mean change its gradient."""
    weight = torch.nn.Parameter(torch.tensor(10.0))
    outer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    expected = []
    for _ in range(3):
        weight.grad = torch.tensor(-1.0)
        outer.step()
        expected.append(weight.item())
    for rank in range(RANKS):
        weights = json.loads((folder / f"weights-{rank}.json").read_text())["diloco"]
        assert [after for _, after in weights] == pytest.approx(expected)
