"""The callbacks of trainers where their library is not installed, or is damaged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
from flatout.callbacks import for_keras, for_lightning, for_transformers

Make = Callable[[Path], Any]


@pytest.mark.parametrize(
    ("make", "absent", "package"),
    [
        (for_lightning, ("lightning", "pytorch_lightning"), "lightning"),
        (for_keras, ("keras",), "keras"),
        (for_transformers, ("transformers",), "transformers"),
    ],
)
def test_a_library_that_is_not_installed_is_named_in_one_line(
    make: Make, absent: tuple[str, ...], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError) as caught:
        make(tmp_path / "traces")
    assert str(caught.value) == f"this callback needs {package}, which is not installed: pip install {package}"
    assert not (tmp_path / "traces").exists()


def test_a_library_that_lacks_a_package_of_its_own_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keras.py").write_text("import optree_of_nobody\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'optree_of_nobody'"):
        for_keras(tmp_path / "traces")


def test_the_older_name_of_lightning_is_taken_where_the_newer_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ModuleType("pytorch_lightning")
    older.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", older)
    assert isinstance(for_lightning(tmp_path / "traces"), older.Callback)  # type: ignore[attr-defined]
