"""Folders of images by class, found as torchvision finds them."""

from __future__ import annotations

import os
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def find_classes(directory: Any) -> tuple[list[str], dict[str, int]]:
    classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {directory}.")
    return classes, {name: number for number, name in enumerate(classes)}


def make_dataset(
    directory: Any,
    class_to_idx: dict[str, int] | None = None,
    extensions: Any = None,
    is_valid_file: Any = None,
    allow_empty: bool = False,
) -> list[tuple[str, int]]:
    directory = os.path.expanduser(directory)
    if class_to_idx is None:
        _, class_to_idx = find_classes(directory)
    if (extensions is None) == (is_valid_file is None):
        raise ValueError("Both extensions and is_valid_file cannot be None or not None at the same time")
    if is_valid_file is None:
        is_valid_file = lambda path: path.lower().endswith(extensions)  # noqa: E731
    instances = []
    with_files = set()
    for target in sorted(class_to_idx):
        folder = os.path.join(directory, target)
        if not os.path.isdir(folder):
            continue
        for parent, _, names in sorted(os.walk(folder, followlinks=True)):
            for name in sorted(names):
                path = os.path.join(parent, name)
                if is_valid_file(path):
                    instances.append((path, class_to_idx[target]))
                    with_files.add(target)
    empty = set(class_to_idx) - with_files
    if empty and not allow_empty:
        raise FileNotFoundError(f"Found no valid file for the classes {', '.join(sorted(empty))}.")
    return instances


def pil_loader(path: str) -> Any:
    with open(path, "rb") as file:
        image = Image.open(file)
        return image.convert("RGB")


def default_loader(path: str) -> Any:
    return pil_loader(path)


class DatasetFolder(Dataset[Any]):
    def __init__(
        self,
        root: Any,
        loader: Any,
        extensions: Any = None,
        transform: Any = None,
        target_transform: Any = None,
        is_valid_file: Any = None,
        allow_empty: bool = False,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        self.loader, self.extensions = loader, extensions
        self.transform, self.target_transform = transform, target_transform
        self.classes, self.class_to_idx = self.find_classes(self.root)
        self.samples = self.make_dataset(
            self.root,
            class_to_idx=self.class_to_idx,
            extensions=extensions,
            is_valid_file=is_valid_file,
            allow_empty=allow_empty,
        )
        self.targets = [label for _, label in self.samples]

    @staticmethod
    def make_dataset(
        directory: Any,
        class_to_idx: dict[str, int],
        extensions: Any = None,
        is_valid_file: Any = None,
        allow_empty: bool = False,
    ) -> list[tuple[str, int]]:
        return make_dataset(
            directory, class_to_idx, extensions=extensions, is_valid_file=is_valid_file, allow_empty=allow_empty
        )

    def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
        return find_classes(directory)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target

    def __len__(self) -> int:
        return len(self.samples)


class ImageFolder(DatasetFolder):
    def __init__(
        self,
        root: Any,
        transform: Any = None,
        target_transform: Any = None,
        loader: Any = default_loader,
        is_valid_file: Any = None,
        allow_empty: bool = False,
    ) -> None:
        super().__init__(
            root,
            loader,
            IMG_EXTENSIONS if is_valid_file is None else None,
            transform=transform,
            target_transform=target_transform,
            is_valid_file=is_valid_file,
            allow_empty=allow_empty,
        )
        self.imgs = self.samples
