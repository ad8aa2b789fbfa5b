"""Build models of the transformers library with a fused attention, if they have one."""

from __future__ import annotations

from functools import wraps
from importlib.util import find_spec
from typing import Any

from flatout.inside.after_import import after_import
from flatout.inside.patches.report import Report


def fused_attention(report: Report, *, implementation: str = "sdpa") -> None:
    report.waits("no model of transformers was built")
    if implementation == "flash_attention_2" and find_spec("flash_attn") is None:
        report.note("the package flash_attn is not installed")
        return
    after_import("transformers.modeling_utils", report.guarded(lambda module: _patch(report, module, implementation)))


def _patch(report: Report, module: Any, implementation: str) -> None:
    kind = module.PreTrainedModel
    original = kind.__init__

    @wraps(original)
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        own = getattr(config, "_attn_implementation", None)
        if own == implementation:
            report.note(f"a model already has {implementation}")
            original(self, config, *args, **kwargs)
            return
        try:
            config._attn_implementation = implementation
            original(self, config, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - if the script's own way fails too, it says so
            report.note(f"{type(self).__name__} does not take it: {str(error)[:200]}")
            config._attn_implementation = own
            original(self, config, *args, **kwargs)
            return
        report.did("models")

    kind.__init__ = init
