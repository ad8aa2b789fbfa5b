"""Make the variants that are another file or folder in the place of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from flatout.compress.folder_files import bf16_folder
from flatout.compress.onnx_files import make_file

FOLDER_VARIANT = "file-bf16"


def make_model(name: str, model: Path, folder: Path) -> Path:
    """Write the variant into the folder, and return its path. Raises NotMadeError if it cannot be made."""
    return bf16_folder(model, folder / "model") if name == FOLDER_VARIANT else make_file(name, model, folder)


def kind_of_model(model: Path | None) -> Literal["onnx", "folder", "none"]:
    """Return what the user's model is."""
    if model is None:
        return "none"
    return "folder" if model.is_dir() else "onnx"
