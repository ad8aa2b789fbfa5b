"""Answer torchvision's `ImageFolder` from a pack: its classes and files, in its order, with its paths and labels.

In: the module `torchvision.datasets.folder` and the packs. Out: its functions `find_classes` and `make_dataset`, which
do not walk through a folder that is packed. A data set with its own rule for files, or with other extensions than those
of images, still walks through the folder, and its files are read from the pack where they are in it.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from flatout.inside.log import LOG
from flatout.inside.packed_reads.lookup import Pack

_IMAGE_FOLDER = "image-folder"


def serve_image_folder(module: Any, packs: list[Pack]) -> None:
    """Replace the two functions of the module; leave a module that has others alone."""
    if not all(callable(getattr(module, name, None)) for name in ("find_classes", "make_dataset")):
        LOG.write("this torchvision finds the files of an ImageFolder in another way")
        return
    module.find_classes = _find_classes(module.find_classes, packs)
    module.make_dataset = _make_dataset(module, module.make_dataset, packs)


def _pack_of(directory: Any, packs: list[Pack]) -> Pack | None:
    """Return the image folder's pack; None if this folder is not the root of one."""
    path = os.path.abspath(os.path.expanduser(os.fspath(directory)))
    return next((pack for pack in packs if pack.source == path and pack.kind == _IMAGE_FOLDER), None)


def _find_classes(original: Any, packs: list[Pack]) -> Any:
    @wraps(original)
    def find_classes(directory: Any) -> Any:
        pack = _pack_of(directory, packs)
        if pack is None:
            return original(directory)
        classes = list(pack.classes)
        return classes, {name: label for label, name in enumerate(classes)}

    return find_classes


def _make_dataset(module: Any, original: Any, packs: list[Pack]) -> Any:
    @wraps(original)
    def make_dataset(
        directory: Any,
        class_to_idx: Any = None,
        extensions: Any = None,
        is_valid_file: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        pack = _pack_of(directory, packs)
        is_usual = is_valid_file is None and extensions == getattr(module, "IMG_EXTENSIONS", None)
        if pack is None or not is_usual:
            return original(directory, class_to_idx, extensions, is_valid_file, *args, **kwargs)
        labels = module.find_classes(directory)[1] if class_to_idx is None else class_to_idx
        root = os.path.expanduser(directory)
        by_class: dict[str, list[str]] = {name: [] for name in sorted(labels)}
        for name in pack.names():
            class_name = name.partition("/")[0]
            if class_name in by_class:
                by_class[class_name].append(name)
        if not all(by_class.values()):  # torchvision says which classes have no files
            return original(directory, class_to_idx, extensions, is_valid_file, *args, **kwargs)
        return [(os.path.join(root, name), labels[each]) for each, names in by_class.items() for name in names]

    return make_dataset
