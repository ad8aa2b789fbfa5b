"""Call a function once a module has been imported, or at once if it is already imported."""

from __future__ import annotations

import sys
from importlib.util import find_spec

TYPE_CHECKING = False  # so that `typing` is not loaded before the script needs it: see `failure.pre_torch_hooks`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def after_import(name: str, callback: Callable[[Any], object]) -> None:
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _Wait(name, callback))


class _Wait:
    """A finder that only wraps the loader of one module, as in `startup/sitecustomize.py`."""

    def __init__(self, name: str, callback: Callable[[Any], object]) -> None:
        self._name, self._callback = name, callback
        self._is_looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name != self._name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            run_module = loader.exec_module

            def exec_module(module: Any) -> None:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                run_module(module)
                self._callback(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
