"""onnx: the model is exported to ONNX at its first call, and calls of it run a session of ONNX Runtime on the CPU.

The size of the batch may differ from call to call, and so may the length of inputs of whole numbers, which are tokens.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.first_model import FirstCall
from flatout.inside.compression.layers import use_replaced_layers
from flatout.inside.patches.models import around_forward

_MARK, _RUN = "_flatout_onnx", "_flatout_onnx_run"
_OPSET = 17


def compress(model: Any, skip: Collection[str] = (), *, call: FirstCall, save: str | None = None) -> Changed:
    """Export the module that was called, and let a session run it from now on. `save`: the file of the export."""
    with tempfile.TemporaryDirectory(prefix="flatout-onnx-") as folder:
        path = Path(save or f"{folder}/model.onnx")
        export(call, path, skip)
        return run_in_session(call, path)


def export(call: FirstCall, path: Path, skip: Collection[str]) -> None:
    """Write the module that was called in the format of ONNX."""
    if skip:
        raise NotAppliedError("it exports the whole model, so no module can be kept as it is")
    inputs = _inputs(call)
    if not inputs or any(not isinstance(value, torch.Tensor) for value in inputs.values()):
        raise NotAppliedError("it exports models whose inputs are tensors")
    if any(value.device.type != "cpu" for value in inputs.values()):
        raise NotAppliedError("its sessions run on a CPU")
    try:
        import onnx  # noqa: F401 - the exporter needs it, and says so in many lines
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise NotAppliedError(f"{error.name} is not installed") from error
    use_replaced_layers(call.module)  # a fused kernel has no form in ONNX
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Positional(call),
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            dynamic_axes={name: _free_axes(value) for name, value in inputs.items()},
            opset_version=_OPSET,
            dynamo=False,
        )


def run_in_session(call: FirstCall, path: Path) -> Changed:
    """Let calls of the module run a session of the file."""
    import onnxruntime

    output = call.module.forward(*call.args, **call.kwargs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    call.module.__dict__[_RUN] = _Run(session, output)
    around_forward(call.module, _MARK, _run)
    return Changed(("",), stored_bytes=path.stat().st_size)


class _Run:
    """A session, and how its outputs become what the module returned."""

    def __init__(self, session: Any, output: Any) -> None:
        self._session = session
        self._inputs = [each.name for each in session.get_inputs()]
        self._kind = type(output)
        self._names = _output_names(output)

    def __call__(self, call: FirstCall) -> Any:
        named = _inputs(call)
        feed = {name: named[name].detach().numpy() for name in self._inputs}
        found = [torch.from_numpy(array) for array in self._session.run(None, feed)]
        if self._names is not None:
            return self._kind(**dict(zip(self._names, found, strict=False)))
        return found[0] if issubclass(self._kind, torch.Tensor) else self._kind(found)


def _run(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
    del forward
    return module.__dict__[_RUN](FirstCall(module, args, kwargs))


class _Positional(torch.nn.Module):  # type: ignore[misc]
    """The module with all of its inputs by place, as the exporter calls it."""

    def __init__(self, call: FirstCall) -> None:
        super().__init__()
        self.module = call.module
        self._num_args = len(call.args)
        self._names = list(_inputs(call))[self._num_args :]

    def forward(self, *inputs: Any) -> Any:
        named = dict(zip(self._names, inputs[self._num_args :], strict=True))
        return self.module(*inputs[: self._num_args], **named)


def _inputs(call: FirstCall) -> dict[str, Any]:
    """Return the inputs of a call by name; those without a name have their place."""
    named = {f"input_{place}": value for place, value in enumerate(call.args)}
    return {**named, **{name: value for name, value in call.kwargs.items() if value is not None}}


def _free_axes(value: torch.Tensor) -> dict[int, str]:
    axes = {0: "batch"} if value.dim() else {}
    if value.dim() > 1 and not value.is_floating_point():
        axes[1] = "length"
    return axes


def _output_names(output: Any) -> list[str] | None:
    """Return the names of the outputs of a mapping, such as those of transformers; None for tensors."""
    values = list(output.values()) if isinstance(output, Mapping) else output
    values = [values] if isinstance(values, torch.Tensor) else values
    is_plain = isinstance(output, torch.Tensor) or type(output) in (tuple, list) or isinstance(output, Mapping)
    if not is_plain or not all(isinstance(value, torch.Tensor) for value in values):
        raise NotAppliedError(f"it exports models that return tensors, and this one returns {type(output).__name__}")
    return list(output) if isinstance(output, Mapping) else None
