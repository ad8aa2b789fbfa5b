"""Functions of compiled libraries that write a file by its name get the name of the redirected file.

The libraries need not be installed: each function is a stand-in that returns its arguments. If one is, its functions
must have the names and arguments that we know.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flatout.inside.overlay.patch_writers import _WRITERS, _patch_writer


class _Overlay:
    def for_writing(self, path: str, *, is_fresh: bool) -> str:
        assert is_fresh
        return f"apart/{path}"


def _stand_in(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@pytest.mark.parametrize(("module_name", "name", "position", "keyword"), _WRITERS)
def test_the_name_of_a_file_is_redirected_by_place_and_by_keyword(
    module_name: str, name: str, position: int, keyword: str
) -> None:
    module = ModuleType(module_name)
    *owners, last = name.split(".")
    holder: Any = module
    for owner in owners:
        setattr(holder, owner, SimpleNamespace())
        holder = getattr(holder, owner)
    setattr(holder, last, _stand_in)
    _patch_writer(_Overlay(), name, position, keyword, module)  # type: ignore[arg-type]
    write = getattr(holder, last)
    before = tuple(range(position))
    assert write(*before, "file.x", 9, more=1) == ((*before, "apart/file.x", 9), {"more": 1})
    assert write(*before, **{keyword: "file.x"}) == (before, {keyword: "apart/file.x"})
    stream = io.BytesIO()
    assert write(*before, stream) == ((*before, stream), {})


def test_a_library_without_the_function_is_left_alone() -> None:
    module = ModuleType("library")
    _patch_writer(_Overlay(), "Writer.write", 0, "path", module)  # type: ignore[arg-type]
    assert not hasattr(module, "Writer")


def _is_installed(module_name: str) -> bool:
    return importlib.util.find_spec(module_name.partition(".")[0]) is not None


@pytest.mark.parametrize(
    ("module_name", "name", "position", "keyword"), [writer for writer in _WRITERS if _is_installed(writer[0])]
)
def test_an_installed_library_has_the_function(module_name: str, name: str, position: int, keyword: str) -> None:
    function: Any = importlib.import_module(module_name)
    for part in name.split("."):
        function = getattr(function, part)
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:  # a compiled function says its arguments in its text alone
        assert keyword in (function.__doc__ or "")
        return
    assert names[position] == keyword
