"""Give sessions of ONNX Runtime other options than the script does: threads, waiting, optimization, provider."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any

from flatout.inside.after_import import after_import
from flatout.inside.patches.report import Report
from flatout.inside.recording.session_calls import SESSIONS_MODULE

_SPINNING = "session.intra_op.allow_spinning"
_CPU = "CPUExecutionProvider"
_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider",),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
    "openvino": ("OpenVINOExecutionProvider",),
}


def onnx_session(
    report: Report,
    *,
    threads: int | None = None,
    spinning: bool | None = None,
    optimize: bool | None = None,
    provider: str | None = None,
) -> None:
    report.waits("no session of ONNX Runtime was made")

    def set_options(options: Any, kind: Any) -> None:
        if threads is not None:
            options.intra_op_num_threads = threads
        if spinning is False:
            options.add_session_config_entry(_SPINNING, "0")
        if optimize:
            options.graph_optimization_level = kind.ORT_ENABLE_ALL
        if provider is None:
            report.did("sessions")

    def patch(module: Any) -> None:
        onnxruntime: Any = sys.modules["onnxruntime"]  # the package that the module is of
        session = module.InferenceSession
        original = session.__init__

        @wraps(original)
        def init(self: Any, path: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
            options = onnxruntime.SessionOptions() if sess_options is None else sess_options
            report.guarded(set_options)(options, onnxruntime.GraphOptimizationLevel)
            asked = None if args else report.guarded(ask_for)()
            if asked is not None:  # options of other providers do not fit
                kwargs = {name: value for name, value in kwargs.items() if name != "provider_options"}
                kwargs["providers"] = asked
            original(self, path, options, *args, **kwargs)
            if asked is not None:
                report.guarded(tell_provider)(self)

        def ask_for() -> list[str] | None:
            if provider is None:
                return None
            asked = providers_for(provider, onnxruntime.get_available_providers())
            if asked is None:
                report.note(f"this ONNX Runtime has no provider {_PROVIDERS[provider][0]}")
            return asked

        def tell_provider(session: Any) -> None:
            if provider is not None and session.get_providers()[0] == _PROVIDERS[provider][0]:
                report.did("sessions")
            else:
                report.note("ONNX Runtime did not take the provider")

        session.__init__ = init

    after_import(SESSIONS_MODULE, report.guarded(patch))


def providers_for(provider: str, available: Sequence[str]) -> list[str] | None:
    """Return the providers to ask for, with those that take over what the first cannot; None if it is not there."""
    first, *others = _PROVIDERS[provider]
    if first not in available:
        return None
    return [first, *(name for name in (*others, _CPU) if name in available)]
