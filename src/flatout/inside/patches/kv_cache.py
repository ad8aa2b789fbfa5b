"""Let `generate` of transformers keep keys and values between tokens, where the script has switched that off.

With `static`, the cache has a fixed size, so that transformers can compile the step that makes a token.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from flatout.inside.after_import import after_import
from flatout.inside.patches.report import Report

_GIVEN = ("past_key_values", "cache_implementation")


def kv_cache(report: Report, *, static: bool = False) -> None:
    report.waits("generate of transformers was not called")
    after_import(
        "transformers.generation.utils", report.guarded(lambda module: _patch(report, module, is_static=static))
    )


def _patch(report: Report, module: Any, *, is_static: bool) -> None:
    kind = module.GenerationMixin
    original = kind.generate

    @wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        added = report.guarded(_added)(self, args, kwargs, report, is_static=is_static)
        return original(self, *args, **{**kwargs, **(added or {})})

    kind.generate = generate


def _added(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], report: Report, *, is_static: bool
) -> dict[str, Any]:
    """Return the keywords to add to a call of `generate`; {} if it keeps a cache already."""
    given = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None)
    config = given or getattr(model, "generation_config", None)
    if any(kwargs.get(name) is not None for name in _GIVEN):
        report.note("the script passes its own cache")
        return {}
    has_cache = kwargs.get("use_cache", getattr(config, "use_cache", True)) is not False
    if has_cache and not is_static:
        report.note("generate keeps a cache already")
        return {}
    report.did("calls")
    return {"use_cache": True, **({"cache_implementation": "static"} if is_static else {})}
