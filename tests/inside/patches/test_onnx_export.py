"""A model computed by ONNX Runtime where its call can be exported, and by itself everywhere else.

The export itself needs the package onnx: `_exported` was run with onnx 1.23 and ONNX Runtime 1.32 on a perceptron.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flatout.inside.patches import onnx_export
from flatout.inside.patches.onnx_export import MOST_SHAPES, _Exported
from flatout.inside.patches.onnx_session import providers_for
from flatout.inside.patches.report import Report, Reports


class _Input:
    name = "x"


class _Session:
    """Computes as the model did when it was exported, and counts its runs."""

    def __init__(self, module: Any) -> None:
        self.weight, self.bias = (one.detach().numpy().copy() for one in (module.weight, module.bias))
        self.runs = 0

    def get_inputs(self) -> list[_Input]:
        return [_Input()]

    def run(self, names: None, given: dict[str, Any]) -> list[Any]:
        self.runs += 1
        return [np.ascontiguousarray(given["x"] @ self.weight.T + self.bias)]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.nn.Linear, _Exported, Report]:
    monkeypatch.setattr(onnx_export, "_exported", lambda module, args: _Session(module))
    report = Report("onnx_export", {}, Reports())
    return torch.nn.Linear(4, 2).eval(), _Exported(report), report


def call(model: Any, exported: _Exported, *args: Any, **kwargs: Any) -> Any:
    return exported.around(type(model).forward, model, args, kwargs)


def test_calls_of_a_shape_are_computed_by_its_session(exported: tuple[Any, _Exported, Report]) -> None:
    model, calls, report = exported
    with torch.no_grad():
        for rows in (3, 3, 5):
            x = torch.randn(rows, 4)
            assert torch.allclose(call(model, calls, x), model(x), atol=1e-6)
    assert report.details == {"calls": 3}


@pytest.mark.parametrize("kind", ["gradients", "keywords", "training", "off"])
def test_other_calls_are_the_models_own(exported: tuple[Any, _Exported, Report], kind: str) -> None:
    model, calls, report = exported
    x = torch.randn(3, 4)
    model.train(kind == "training")
    report.is_on = kind != "off"
    with torch.set_grad_enabled(kind == "gradients"):
        output = call(model, calls, input=x) if kind == "keywords" else call(model, calls, x)
        assert torch.equal(output, model(x))
    assert report.details == {}


def test_a_further_shape_new_weights_and_a_failed_export_are_said(
    exported: tuple[Any, _Exported, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls, report = exported
    with torch.no_grad():
        for rows in range(1, MOST_SHAPES + 2):
            call(model, calls, torch.randn(rows, 4))
        assert report.details == {"calls": MOST_SHAPES}
        model.weight.add_(1.0)
        x = torch.randn(1, 4)
        assert torch.equal(call(model, calls, x), model(x))
    assert report.notes == [
        f"the model is called with more than {MOST_SHAPES} shapes",
        "the script changed the weights after they were exported",
    ]

    def fails(module: Any, args: Any) -> Any:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(onnx_export, "_exported", fails)
    told = Report("onnx_export", {}, Reports())
    with torch.no_grad():
        assert call(model, _Exported(told), x).shape == (1, 2)
    assert told.reason == "the model cannot be exported: RuntimeError: no such operator"


def test_a_provider_is_asked_for_only_where_it_is_installed() -> None:
    cuda, tensorrt, cpu = "CUDAExecutionProvider", "TensorrtExecutionProvider", "CPUExecutionProvider"
    assert providers_for("tensorrt", [tensorrt, cuda, cpu]) == [tensorrt, cuda, cpu]
    assert providers_for("tensorrt", [tensorrt, cpu]) == [tensorrt, cpu]
    assert providers_for("cuda", [tensorrt, cuda, cpu]) == [cuda, cpu]
    assert providers_for("cuda", [cpu]) is None
