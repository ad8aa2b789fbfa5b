"""Read a folder of images by class, with the classes, order and labels of torchvision's `ImageFolder`.

In: the folder. Out: its samples. As in torchvision, a class is a folder within it, classes are sorted by name, and the
files of a class are all images below its folder, folder by folder in sorted order. Raises InputError where torchvision
would raise, and for a folder that holds splits rather than classes.
"""

from __future__ import annotations

import os
from pathlib import Path

from flatout.errors import InputError
from flatout.input_files import walk_with_links
from flatout.records.packing import FileContent, SourceSample

# `torchvision.datasets.folder.IMG_EXTENSIONS`
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def read_image_folder(folder: Path) -> tuple[Path, list[SourceSample], list[str]]:
    """Return the root, the samples and the classes."""
    root = folder.absolute()
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise InputError(f"`{folder}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not classes:
        raise InputError(f"`{folder}` has no folders, but each class of images must be a folder within it")
    if set(classes) <= _SPLITS:
        raise InputError(
            f"`{folder}` has the splits {', '.join(classes)} where its classes must be",
            hint=f"pack each split separately: {folder / classes[0]}",
        )
    samples: list[SourceSample] = []
    empty: list[str] = []
    for label, name in enumerate(classes):
        paths = _images_below(root / name)
        if not paths:
            empty.append(name)
        samples += [_sample(root, path, label, name) for path in paths]
    if empty:
        raise InputError(
            f"each class must have an image, but {len(empty)} of {len(classes)} have none: {', '.join(empty[:5])}",
            hint=f"an image ends in {', '.join(IMAGE_EXTENSIONS)}",
        )
    return root, samples, classes


def _images_below(folder: Path) -> list[str]:
    images: list[str] = []
    try:
        for parent, names in sorted((str(parent), names) for parent, names in walk_with_links(folder)):
            images += [os.path.join(parent, name) for name in names if name.lower().endswith(IMAGE_EXTENSIONS)]
    except OSError as error:
        raise InputError(f"`{error.filename}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    return images


def _sample(root: Path, path: str, label: int, class_name: str) -> SourceSample:
    name = os.path.relpath(path, root)
    return SourceSample(
        name=name,
        extension=os.path.splitext(name)[1][1:].lower(),
        content=FileContent(path=path),
        label=label,
        group=class_name,
    )
