"""Give sessions of ONNX Runtime other options than the script does: threads, waiting, and the level of optimization."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from flatout.inside.after_import import after_import
from flatout.inside.patches.report import Report
from flatout.inside.recording.session_calls import SESSIONS_MODULE

_SPINNING = "session.intra_op.allow_spinning"


def onnx_session(
    report: Report, *, threads: int | None = None, spinning: bool | None = None, optimize: bool | None = None
) -> None:
    report.waits("no session of ONNX Runtime was made")

    def set_options(options: Any, kind: Any) -> None:
        if threads is not None:
            options.intra_op_num_threads = threads
        if spinning is False:
            options.add_session_config_entry(_SPINNING, "0")
        if optimize:
            options.graph_optimization_level = kind.ORT_ENABLE_ALL
        report.did("sessions")

    def patch(module: Any) -> None:
        onnxruntime: Any = sys.modules["onnxruntime"]  # the package that the module is of
        session = module.InferenceSession
        original = session.__init__

        @wraps(original)
        def init(self: Any, path: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
            options = onnxruntime.SessionOptions() if sess_options is None else sess_options
            report.guarded(set_options)(options, onnxruntime.GraphOptimizationLevel)
            original(self, path, options, *args, **kwargs)

        session.__init__ = init

    after_import(SESSIONS_MODULE, report.guarded(patch))
