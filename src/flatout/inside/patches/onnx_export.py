"""Export the model to ONNX at its first calls, and compute later calls of the same shapes with ONNX Runtime.

In: a model that is called without gradients, with tensors as its positional arguments. Out: the same tensors, from a
session of ONNX Runtime. A call of another kind, with new weights or of a further shape than the first few, is computed
by the model itself. Nothing is written to disk.
"""

from __future__ import annotations

import io
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

MOST_SHAPES = 4
_MARK = "_flatout_onnx"
_NEEDED = ("onnx", "onnxruntime")


def onnx_export(report: Report) -> None:
    report.waits("no model was found")
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        report.note(f"the package {missing[0]} is not installed")
        return

    def found(model: Any) -> None:
        exported = _Exported(report)
        around_forward(model, _MARK, exported.around)
        report.did("models")

    MODELS.on_model(report, found)


class _Exported:
    """The sessions of one model, by the shapes of its inputs."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._sessions: dict[Any, Any] = {}  # None: the model cannot be exported for this shape
        self._versions: tuple[int, ...] | None = None  # of the weights that were exported
        self._is_exporting = False

    def around(self, forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if self._is_exporting or not self._suits(module, args, kwargs):
            return forward(module, *args, **kwargs)
        session = self._session(module, args)
        if session is None:
            return forward(module, *args, **kwargs)
        output = self._report.guarded(_run)(session, args)
        if output is None:
            self._sessions[_key(args)] = None
            return forward(module, *args, **kwargs)
        self._report.did("calls")
        return output

    def _suits(self, module: Any, args: Any, kwargs: Any) -> bool:
        if not self._report.is_on or kwargs or torch.is_grad_enabled() or module.training:
            return False
        return bool(args) and all(type(one) is torch.Tensor and one.device.type == "cpu" for one in args)

    def _session(self, module: Any, args: Any) -> Any:
        versions = tuple(parameter._version for parameter in module.parameters())
        if self._versions is not None and versions != self._versions:
            self._report.note("the script changed the weights after they were exported")
            self._sessions = dict.fromkeys(self._sessions)
            return None
        key = _key(args)
        if key not in self._sessions:
            if len(self._sessions) >= MOST_SHAPES:
                self._report.note(f"the model is called with more than {MOST_SHAPES} shapes")
                return None
            self._versions = versions
            self._sessions[key] = self._export(module, args)
        return self._sessions[key]

    def _export(self, module: Any, args: Any) -> Any:
        self._is_exporting = True
        try:
            return _exported(module, args)
        except Exception as error:  # noqa: BLE001 - the model computes as before
            self._report.note(f"the model cannot be exported: {type(error).__name__}: {str(error)[:200]}")
            return None
        finally:
            self._is_exporting = False


def _key(args: Any) -> Any:
    return tuple((one.dtype, tuple(one.shape)) for one in args)


def _exported(module: Any, args: Any) -> Any:
    """Return a session of ONNX Runtime that computes the model for inputs of these shapes."""
    runtime: Any = import_module("onnxruntime")
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(args), target, dynamo=False)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return runtime.InferenceSession(target.getvalue(), options, providers=["CPUExecutionProvider"])


def _run(session: Any, args: Any) -> Any:
    inputs = session.get_inputs()
    given = {one.name: value.detach().contiguous().numpy() for one, value in zip(inputs, args, strict=True)}
    outputs = [torch.from_numpy(output) for output in session.run(None, given)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
