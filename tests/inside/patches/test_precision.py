"""Lower precision and other steps: fp16 with scaled losses, fp8, and optimizers that are not the script's own."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.inside.patches.runs import STARTUP, Done, run

from flatout.inside.patches.fused_kernels import by_xformers
from flatout.inside.patches.loss_scaling import FIRST_SCALE, GROWTH_INTERVAL, LossScaler
from flatout.inside.patches.low_precision import with_torchao, with_transformer_engine
from flatout.inside.patches.other_optimizers import made_8bit, scale_step
from flatout.inside.patches.report import Report, Reports

FP16 = [("autocast", {"dtype": "float16"})]


def report() -> Report:
    return Report("x", {}, Reports())


def job(folder: Path, *arguments: object, patched: bool = True) -> Done:
    places = f"{STARTUP}:{STARTUP.parents[2]}"  # the job imports flatout.checkpoint of this source
    done = run(folder / "recording", "fp16", *arguments, patches=FP16 if patched else [], PYTHONPATH=places)
    assert done.code == 0, done.errors
    return done


@pytest.fixture(scope="module")
def plain(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Done:
    return job(tmp_path_factory.mktemp("plain"), "cool", patched=False)


@pytest.fixture(scope="module")
def hot(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("hot")
    return job(folder, "hot", folder / "ckpt", 12)


@pytest.mark.usefixtures("warm")
class TestFp16:
    """In jobs of one process on the CPU, whose fp16 has the same range as a GPU's."""

    def test_gradients_are_true_ones_for_whatever_reads_them(self, plain: Done, tmp_path: Path) -> None:
        done = job(tmp_path, "cool")
        assert done.losses == pytest.approx(plain.losses, rel=2e-2)
        assert done.losses != plain.losses
        norms = [[float(norm) for norm in each.said("norms").split()] for each in (plain, done)]
        assert norms[1] == pytest.approx(norms[0], rel=2e-2)
        assert done.reports["autocast", 0]["details"] == {"models": 1, "forwards": 24, "steps": 12}
        assert done.said("scale") == str({"scale": FIRST_SCALE, "good_steps": 12})

    def test_a_step_that_overflows_is_skipped_and_halves_the_scale(self, hot: Done) -> None:
        done = hot
        details = done.reports["autocast", 0]["details"]
        skipped = details["skipped_steps"]
        assert 0 < skipped < 12
        assert details["steps"] == 12 - skipped
        unchanged = sum(loss == after for loss, after in pairwise(done.losses))
        assert unchanged in (skipped, skipped - 1), (
            "a skipped step changes no weight; that of the last step is not seen"
        )
        assert done.losses[-1] < done.losses[0]
        assert f"'scale': {FIRST_SCALE / 2**skipped}" in done.said("scale")

    def test_a_resumed_training_has_its_scale_again(self, hot: Done, tmp_path: Path) -> None:
        whole = hot
        first = job(tmp_path / "first", "hot", tmp_path / "ckpt", 9)
        second = job(tmp_path / "second", "hot", tmp_path / "ckpt", 12)
        assert second.said("start") == "9"
        assert first.losses + second.losses == whole.losses
        assert second.said("scale") == whole.said("scale")
        assert "skipped_steps" not in second.reports["autocast", 0]["details"]

    def test_it_leaves_a_script_alone_whose_gradients_it_would_change(self, tmp_path: Path) -> None:
        done = job(tmp_path, "input")
        said = done.reports["autocast", 0]
        assert (said["applied"], said["reason"]) == (False, "a tensor outside the optimizers needs gradients")
        assert done.losses[-1] < done.losses[0]

    def test_lamb_takes_other_steps_and_says_how_many(self, plain: Done, tmp_path: Path) -> None:
        done = run(tmp_path / "recording", "fp16", "cool", patches=[("lamb", {})])
        assert done.reports["lamb", 0]["details"] == {"steps": 12}
        assert done.losses[0] == plain.losses[0]
        assert done.losses[1:] != plain.losses[1:]


def test_the_scale_doubles_after_good_steps_and_two_optimizers_count_once() -> None:
    scaler = LossScaler()
    for _ in range(GROWTH_INTERVAL - 1):
        scaler.begins()
        scaler.judge(is_finite=True)
        scaler.judge(is_finite=True)
    assert scaler.state == {"scale": FIRST_SCALE, "good_steps": GROWTH_INTERVAL - 1}
    scaler.begins()
    scaler.judge(is_finite=True)
    assert scaler.state == {"scale": 2 * FIRST_SCALE, "good_steps": 0}
    scaler.begins()
    scaler.judge(is_finite=False)
    assert scaler.state == {"scale": FIRST_SCALE, "good_steps": 0}


def test_the_trust_ratio_makes_a_step_as_large_as_the_rate_says() -> None:
    """LAMB: |change| = rate x |weights|, in the direction of Adam's step."""
    torch.manual_seed(0)
    old, step = torch.randn(8, 8), torch.randn(8, 8) * 1e-3
    new = old + step
    scale_step(new, old, rate=0.01)
    change = new - old
    assert float(change.norm() / old.norm()) == pytest.approx(0.01, rel=1e-4)
    assert float(torch.cosine_similarity(change.flatten(), step.flatten(), dim=0)) == pytest.approx(1.0, abs=1e-4)
    zero = torch.zeros(4, 4)
    moved = zero + 0.5
    scale_step(moved, zero, rate=0.01)
    assert torch.equal(moved, zero + 0.5), "a matrix of zeros takes Adam's step"


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 17), torch.nn.Linear(17, 16))


class _Layer(torch.nn.Linear):
    """A layer of another package."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, **more: Any) -> None:
        self.more = more
        super().__init__(inputs, outputs, bias=bias)


def test_torchao_converts_the_layers_that_suit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(module: Any, *, module_filter_fn: Any) -> None:
        for name, child in list(module.named_children()):
            if module_filter_fn(child, name):
                layer = _Layer(child.in_features, child.out_features)
                layer.weight, layer.bias = child.weight, child.bias
                setattr(module, name, layer)

    float8 = ModuleType("torchao.float8")
    float8.convert_to_float8_training = convert  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)
    changed = model()
    assert with_torchao(changed) == 1  # not the widths of 17, not the last layer
    assert type(changed[0]) is _Layer


def test_transformer_engine_gets_the_same_parameters_and_runs_in_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    class Fp8:
        def __init__(self, *, enabled: bool) -> None:
            self.enabled = enabled

        def __enter__(self) -> None:
            entered.append(self.enabled)

        def __exit__(self, *_: object) -> None: ...

    engine = ModuleType("transformer_engine.pytorch")
    engine.Linear, engine.fp8_autocast = _Layer, Fp8  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)

    class Own(torch.nn.Sequential):
        """A class of its own, whose forward is replaced."""

    changed = Own(*model())
    weight, x = changed[0].weight, torch.randn(2, 32)
    expected = changed(x)
    assert with_transformer_engine(changed) == 1
    assert changed[0].weight is weight
    assert changed[0].more["params_dtype"] is torch.float32
    assert torch.equal(changed(x), expected)
    assert entered == [True]


def test_8_bit_optimizers_get_the_arguments_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    optim = ModuleType("bitsandbytes.optim")
    optim.AdamW8bit = lambda **given: made.append(given) or "8-bit"  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)
    told = report()
    assert made_8bit(told, "bitsandbytes", "AdamW", (["p"], 1e-3), {"betas": (0.9, 0.95), "fused": True}) == "8-bit"
    assert made == [{"params": ["p"], "lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 1e-2}]
    assert made_8bit(told, "bitsandbytes", "AdamW", (["p"],), {"amsgrad": True}) is None
    assert made_8bit(told, "bitsandbytes", "AdamW", (["p"],), {"maximize": True}) is None
    assert told.notes == [
        "AdamW of bitsandbytes does not take amsgrad",
        "AdamW of bitsandbytes does not take maximize",
    ]


def test_xformers_gets_sequences_before_heads_and_a_triangle_for_causal_attention() -> None:
    class Operators:
        LowerTriangularMask = staticmethod(lambda: "triangle")

        @staticmethod
        def memory_efficient_attention(
            query: Any, key: Any, value: Any, *, attn_bias: Any, p: float, scale: float | None
        ) -> Any:
            swapped = [each.transpose(1, 2) for each in (query, key, value)]
            is_causal = attn_bias == "triangle"
            output = torch.nn.functional.scaled_dot_product_attention(*swapped, is_causal=is_causal, scale=scale)
            return output.transpose(1, 2)

    q, k, v = torch.randn(3, 2, 4, 8, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(by_xformers(Operators, q, k, v, {"is_causal": True}), expected)
