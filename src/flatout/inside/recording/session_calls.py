"""Report the runs of ONNX Runtime's sessions, which are the steps of a script that infers with them.

In: `InferenceSession.run`, once onnxruntime is imported. Out: a report of each run, as of a model's call, unless it is
within such a call; and the session's facts. Only plain Python types and numpy's arrays are looked at.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

from flatout.inside.after_import import after_import
from flatout.inside.checks.model_outputs import MAX_CALLS, MAX_TENSORS
from flatout.inside.log import LOG, guarded
from flatout.inside.protocol import SESSION_SPAN
from flatout.inside.recording.batches import Count
from flatout.inside.recording.forward_calls import FORWARD_CALLS, ForwardCalls

SESSIONS_MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
_ON_CPU = "CPUExecutionProvider"
_ON_GPU = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")


class SessionCalls:
    """`install` hooks the sessions, now or once onnxruntime is imported."""

    def __init__(self, calls: ForwardCalls) -> None:
        self._calls = calls
        self._session: weakref.ref[Any] | None = None  # that ran last
        self._undo: Callable[[], None] = lambda: None

    def install(self) -> Callable[[], None]:
        after_import(SESSIONS_MODULE, guarded(self._hook))
        return self.remove

    def remove(self) -> None:
        self._undo()
        self._undo = lambda: None

    def _hook(self, module: Any) -> None:
        kind = module.InferenceSession
        has_own = "run" in vars(kind)
        original = kind.run

        @wraps(original)
        def run(session: Any, output_names: Any, input_feed: Any, *args: Any, **kwargs: Any) -> Any:
            def plain() -> Any:
                if not torch.autograd.profiler._is_profiler_enabled:
                    return original(session, output_names, input_feed, *args, **kwargs)
                with torch.autograd.profiler.record_function(SESSION_SPAN):
                    return original(session, output_names, input_feed, *args, **kwargs)

            self._note(session)
            return self._calls.around(id(session), _count(input_feed), plain, _tensors)

        kind.run = run

        def undo() -> None:
            if has_own:
                kind.run = original
            else:
                del kind.run

        self._undo = undo

    def _note(self, session: Any) -> None:
        if self._session is None or self._session() is not session:
            self._session = weakref.ref(session)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the session that ran last; {} if none did."""
        session = None if self._session is None else self._session()
        if session is None:
            return {}
        options, providers = session.get_session_options(), session.get_providers()
        first = providers[0] if providers else None
        device = "cpu" if first == _ON_CPU else None
        if first in _ON_GPU:
            device = "cuda"
        return {
            "runs_onnx": True,
            "device": device,
            "session_threads": int(options.intra_op_num_threads),
            "session_is_optimized": options.graph_optimization_level.name == "ORT_ENABLE_ALL",
            "session_provider": first,
            "other_providers": ",".join(_other_providers(first)),
        }


def _other_providers(first: object) -> list[str]:
    """Return the providers that this ONNX Runtime has besides the session's own and the CPU's."""
    available = getattr(sys.modules.get("onnxruntime"), "get_available_providers", list)
    return [name for name in available() if name not in (first, _ON_CPU)]


def _count(inputs: object) -> Count:
    """Count the samples and tokens of a run, by the shape of its first input."""
    try:
        values = inputs.values() if isinstance(inputs, Mapping) else ()
        for value in values:
            shape = getattr(value, "shape", None)
            if callable(shape):
                shape = shape()  # of an OrtValue
            if not shape:
                continue
            kind = getattr(getattr(value, "dtype", None), "kind", "")
            has_tokens = len(shape) == 2 and shape[1] > 1 and kind == "i"
            return int(shape[0]), int(shape[0] * shape[1]) if has_tokens else None
    except Exception:  # noqa: BLE001 - an error of ours is never the job's
        LOG.error("session")
    return None, None


def _tensors(number: int, outputs: object) -> object:
    """Return the outputs of one of the first runs as tensors, for their digest; of later runs nothing is needed."""
    if number >= MAX_CALLS or not isinstance(outputs, list):
        return None
    tensors = []
    for output in outputs[:MAX_TENSORS]:
        try:
            tensors.append(torch.as_tensor(output))
        except (TypeError, ValueError, RuntimeError):  # texts, maps and other kinds that torch has no tensors for
            continue
    return tensors


SESSION_CALLS = SessionCalls(FORWARD_CALLS)
