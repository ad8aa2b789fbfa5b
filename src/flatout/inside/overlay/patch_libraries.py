"""Redirect the checkpoints of torch and safetensors, whether or not the file existed, and read them from there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from flatout.inside.after_import import after_import
from flatout.inside.log import guarded
from flatout.inside.overlay.file_overlay import FileOverlay, is_path
from flatout.inside.overlay.patch_writers import patch_mapped_files

_HOLDERS = ("safetensors", "safetensors.torch", "safetensors.numpy")


def patch_libraries(overlay: FileOverlay) -> None:
    _patch_torch(overlay)
    for name, patch in (
        ("torch.distributed.checkpoint.filesystem", _patch_distributed),
        ("safetensors", _patch_safetensors),
    ):
        after_import(name, guarded(partial(patch, overlay)))


def _target(overlay: FileOverlay, path: Any) -> Any:
    """Return where to write, or `path` if that fails anyway, so that the library raises its own error."""
    if not is_path(path) or os.path.isdir(path):
        return path
    has_folder = os.path.isdir(os.path.dirname(os.path.abspath(os.fsdecode(path))))
    return overlay.target(path) if has_folder else path


def _patch_torch(overlay: FileOverlay) -> None:
    def saving(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(obj, _target(overlay, f), *args, **kwargs)

        return save

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(overlay.locate_to_read(f) if is_path(f) else f, *args, **kwargs)

        return load

    torch.save = torch.serialization.save = saving(torch.save)
    torch.load = torch.serialization.load = loading(torch.load)
    torch.jit.save, torch.jit.load = saving(torch.jit.save), loading(torch.jit.load)
    patch_mapped_files(overlay, torch)


def _patch_safetensors(overlay: FileOverlay, package: Any) -> None:
    """Patch what `save_file` and `save_model` call; the package imports it before its other modules."""
    original_write, original_open = package.serialize_file, package.safe_open

    @wraps(original_write)
    def serialize_file(tensor_dict: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original_write(tensor_dict, _target(overlay, filename), *args, **kwargs)

    @wraps(original_open, updated=())
    def safe_open(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original_open(overlay.locate_to_read(filename), *args, **kwargs)

    for name in _HOLDERS:
        module = sys.modules.get(name)
        for held, original, ours in (
            ("serialize_file", original_write, serialize_file),
            ("safe_open", original_open, safe_open),
        ):
            if getattr(module, held, None) is original:
                setattr(module, held, ours)


def _patch_distributed(overlay: FileOverlay, module: Any) -> None:
    """Patch writers and readers, which get their folder when created, or the name of a checkpoint at each save."""

    def written(path: Any) -> Any:
        return overlay.target(path, is_tree=True) if is_path(path) else path

    for name, find in (("FileSystemWriter", written), ("FileSystemReader", overlay.locate)):
        kind = getattr(module, name, None)
        if kind is not None:
            _patch_storage(kind, find)


def _patch_storage(kind: Any, find: Callable[[Any], Any]) -> None:
    original_init, original_reset = kind.__init__, kind.reset

    @wraps(original_init)
    def init(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, find(path), *args, **kwargs)

    @wraps(original_reset)
    def reset(self: Any, checkpoint_id: Any = None) -> None:
        original_reset(self, checkpoint_id if checkpoint_id is None else find(checkpoint_id))

    kind.__init__, kind.reset = init, reset
