"""Norms before clipping, in this process: through torch's own functions, with the recorder's hook in them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.inside import install
from flatout.inside.checks.gradients import NUM_STEPS, GradientRecorder
from flatout.records.trial import GradientNorms
from flatout.trial.gradients import read_gradients

Weights = list[torch.nn.Parameter]
UNKNOWN = None
by_name = torch.nn.utils.clip_grad_norm_  # imported before the hook


class Training:
    """Two weights of which the gradients have the norms 3 and 4."""

    def __init__(self) -> None:
        self.gradients = GradientRecorder(None)
        self.weights: Weights = [torch.nn.Parameter(torch.zeros(9)), torch.nn.Parameter(torch.zeros(2, 8))]
        self.optimizer = torch.optim.SGD(self.weights)

    def backward(self) -> None:
        (self.weights[0].sum() + self.weights[1].sum()).backward()

    def step(self) -> None:
        self.gradients.before_step(self.optimizer, (self.optimizer,), {})
        self.optimizer.step()

    def found(self, folder: Path) -> GradientNorms:
        self.gradients.write(folder, 0)
        (found,) = read_gradients(folder, 1)
        return found

    def unclipped(self, folder: Path) -> list[float | None]:
        return [norm if math.isfinite(norm) else UNKNOWN for norm in self.found(folder).unclipped]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    made = Training()
    monkeypatch.setattr(install, "PROCESS", SimpleNamespace(active=SimpleNamespace(gradients=made.gradients)))
    before = dict(vars(clip_grad)), dict(vars(torch.nn.utils))
    undo = install._hook_clipping()
    yield made
    undo()
    assert (dict(vars(clip_grad)), dict(vars(torch.nn.utils))) == before


def clip(weights: Iterable[torch.nn.Parameter], max_norm: float = 1.0, **more: Any) -> torch.Tensor:
    return torch.nn.utils.clip_grad_norm_(weights, max_norm, **more)


def by_layer(weights: Weights) -> None:
    for weight in weights:
        clip([weight], 0.5, foreach=False)


WAYS: dict[str, Callable[[Weights], Any]] = {
    "all": clip,
    "a generator": lambda weights: clip(weight for weight in weights),
    "an iterator": lambda weights: clip(iter(weights), foreach=True),
    "one": lambda weights: clip(weights[0], error_if_nonfinite=True),
    "by layer": by_layer,
    "twice": lambda weights: [clip(weights), clip(weights[1:], 0.25)],
    "the largest": lambda weights: clip(weights, 0.5, norm_type=math.inf),
    "to no effect": lambda weights: clip(weights, 1e6),
    "to nothing": lambda weights: clip(weights, 0.0),
}
if hasattr(clip_grad, "_clip_grads_with_norm_"):  # since torch 2.6; before, such a name is not ours
    WAYS["by a name that was imported before"] = lambda weights: by_name(weights, 1.0)
    WAYS["with a norm of the script's own"] = lambda weights: torch.nn.utils.clip_grads_with_norm_(
        iter(weights), total_norm=torch.tensor(50.0), max_norm=1.0
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("to_none", [True, False])
def test_norms_are_those_before_clipping_and_those_after_it_beside(
    tmp_path: Path, training: Training, way: str, to_none: bool
) -> None:
    used = []
    for _ in range(NUM_STEPS):
        training.optimizer.zero_grad(set_to_none=to_none)
        training.backward()
        WAYS[way](training.weights)
        used.append(math.sqrt(sum(float(weight.grad.square().sum()) for weight in training.weights)))  # type: ignore[union-attr]
        training.step()
    assert training.unclipped(tmp_path) == [5.0] * NUM_STEPS
    assert training.found(tmp_path).norms == pytest.approx(used)
    assert (used[0] == pytest.approx(5.0)) == (way == "to no effect")


def test_views_into_one_bucket_are_clipped_one_by_one(tmp_path: Path, training: Training) -> None:
    """As `gradient_as_bucket_view` makes them: a change of one counts as one of all."""
    bucket = torch.zeros(25)
    training.weights[0].grad, training.weights[1].grad = bucket[:9], bucket[9:].view(2, 8)
    training.backward()
    by_layer(training.weights)
    training.step()
    assert training.unclipped(tmp_path) == [5.0]


def test_a_step_without_clipping_among_others_is_not_known_before_it(tmp_path: Path, training: Training) -> None:
    for step in range(3):
        training.optimizer.zero_grad()
        training.backward()
        if step != 1:
            clip(training.weights)
        training.step()
    training.step()  # with the gradients of the step before
    assert training.unclipped(tmp_path) == [5.0, UNKNOWN, 5.0, UNKNOWN]


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_clipped_and_thrown_away_do_not_count(
    tmp_path: Path, training: Training, to_none: bool
) -> None:
    """As by scripts that leave out a step with a norm that is not finite."""
    training.backward()
    training.weights[0].grad *= 100  # type: ignore[operator]
    clip(training.weights)
    training.optimizer.zero_grad(set_to_none=to_none)
    training.backward()
    clip(training.weights)
    training.step()
    assert training.unclipped(tmp_path) == [5.0]


@pytest.mark.parametrize("change", ["another pass", "unscaled", "scaled", "zeroed"])
def test_what_is_changed_between_clipping_and_the_step_is_not_known_before(
    tmp_path: Path, training: Training, change: str
) -> None:
    training.backward()
    clip(training.weights)
    if change == "another pass":
        training.backward()
    elif change == "unscaled":  # too late: a scaled gradient was clipped
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.zeros(()))
        scaler.unscale_(training.optimizer)
    elif change == "scaled":
        training.weights[1].grad *= 2.0  # type: ignore[operator]
    else:
        training.optimizer.zero_grad(set_to_none=False)
        training.backward()
    training.step()
    assert training.found(tmp_path).unclipped == ()
    assert len(training.found(tmp_path).norms) == 1


def test_the_scale_of_a_fused_optimizers_scaler_is_divided_out_before_clipping_too(
    tmp_path: Path, training: Training
) -> None:
    training.backward()
    clip(training.weights)
    training.optimizer.grad_scale = torch.tensor(4.0)  # type: ignore[attr-defined]
    training.gradients.before_step(training.optimizer, (training.optimizer,), {})
    assert training.unclipped(tmp_path) == [1.25]


def test_what_torch_returns_and_raises_is_the_scripts(tmp_path: Path, training: Training) -> None:
    training.backward()
    assert float(clip(training.weights)) == 5.0
    training.step()
    training.weights[0].grad.fill_(math.nan)  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match=r"norm .*non-finite"):
        clip(training.weights, error_if_nonfinite=True)
    with pytest.raises(TypeError, match="max_norm"):
        torch.nn.utils.clip_grad_norm_(training.weights)  # type: ignore[call-arg]
    training.step()
    assert training.unclipped(tmp_path) == [5.0, UNKNOWN]
    assert not training.gradients.is_over  # no error of ours


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def operations(weights: Weights) -> list[str]:
    with Operations() as counted:
        clip(weights)
    return counted.names


def test_nothing_waits_for_the_device_and_nothing_is_added_after_the_first_steps(training: Training) -> None:
    training.backward()
    state = torch.get_rng_state()
    begins = operations(training.weights)
    assert not any("_local_scalar_dense" in name or "copy" in name for name in begins), begins
    for _ in range(NUM_STEPS):
        training.step()
    after = operations(training.weights)
    assert bool((torch.get_rng_state() == state).all())
    install.PROCESS.active.gradients = None  # type: ignore[union-attr]
    assert after == operations(training.weights) and len(after) < len(begins)


def test_no_gradient_is_kept_alive(training: Training) -> None:
    training.backward()
    clip(training.weights)
    kept = [weakref.ref(weight.grad.untyped_storage()) for weight in training.weights]  # type: ignore[union-attr]
    gradients = [weakref.ref(weight.grad) for weight in training.weights]  # type: ignore[arg-type]
    training.optimizer.zero_grad(set_to_none=True)
    assert [one() for one in (*kept, *gradients)] == [None] * 4
    assert len(training.gradients._clipping._clipped) == 0


def test_compiled_clipping_is_left_as_it_is_and_not_known(tmp_path: Path, training: Training) -> None:
    compiled = torch.compile(lambda: clip(training.weights), backend="eager", fullgraph=True)
    training.backward()
    assert float(compiled()) == 5.0
    training.step()
    assert training.found(tmp_path).unclipped == ()
    assert training.found(tmp_path).norms == pytest.approx((1.0,))


def test_torch_before_2_6_clips_in_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def old(parameters: Any, max_norm: float) -> torch.Tensor:
        """As torch 2.4 does it, which goes through `parameters` once."""
        grads = [one.grad for one in parameters if one.grad is not None]
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in grads]))
        torch._foreach_mul_(grads, torch.clamp(max_norm / (total + 1e-6), max=1.0))
        return total

    monkeypatch.delattr(clip_grad, "_clip_grads_with_norm_", raising=False)
    for module in (clip_grad, torch.nn.utils):
        monkeypatch.setattr(module, "clip_grad_norm_", old)
    made = Training()
    monkeypatch.setattr(install, "PROCESS", SimpleNamespace(active=SimpleNamespace(gradients=made.gradients)))
    undo = install._hook_clipping()
    made.backward()
    assert float(clip(iter(made.weights))) == 5.0
    made.step()
    undo()
    assert torch.nn.utils.clip_grad_norm_ is clip_grad.clip_grad_norm_ is old
    assert made.unclipped(tmp_path) == [5.0]
    assert made.found(tmp_path).norms == pytest.approx((1.0,))
