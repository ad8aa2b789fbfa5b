"""Hook the functions of libraries that belong to a stage of making a batch: reading, decompressing, decoding, changing.

In: modules that the script has imported, whenever it imports them. Out: the same functions, timed while a batch is
timed. What a library keeps in compiled types that cannot be changed is not hooked: its time belongs to the data set's
own code, where `stacks` names the function that called it.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from flatout.inside.loader_stages.files import timed_open
from flatout.inside.loader_stages.mounts_read import READ_PATHS
from flatout.inside.loader_stages.stopwatch import STOPWATCH, timed
from flatout.inside.loader_stages.streams import STREAMS
from flatout.inside.protocol import LoaderStage

_TRANSFORM = LoaderStage.TRANSFORM


class _Hooked(NamedTuple):
    """Functions of one module or class that belong to one stage."""

    stage: str
    module: str
    owner: str  # the class; "": they are functions of the module
    names: tuple[str, ...]


_LIBRARIES = (
    _Hooked(LoaderStage.OPEN, "PIL.Image", "", ("open",)),
    _Hooked(LoaderStage.READ, "h5py._hl.dataset", "Dataset", ("__getitem__",)),
    _Hooked(LoaderStage.READ, "numpy", "", ("fromfile",)),
    _Hooked(LoaderStage.READ, "datasets.arrow_dataset", "", ("query_table",)),
    _Hooked(LoaderStage.DECODE, "datasets.arrow_dataset", "", ("format_table",)),
    _Hooked(LoaderStage.DECOMPRESS, "zlib", "", ("decompress",)),
    _Hooked(LoaderStage.DECOMPRESS, "gzip", "", ("decompress",)),
    _Hooked(LoaderStage.DECOMPRESS, "gzip", "GzipFile", ("read", "read1", "readline")),
    _Hooked(LoaderStage.DECOMPRESS, "bz2", "", ("decompress",)),
    _Hooked(LoaderStage.DECOMPRESS, "bz2", "BZ2File", ("read", "read1", "readline")),
    _Hooked(LoaderStage.DECOMPRESS, "lzma", "", ("decompress",)),
    _Hooked(LoaderStage.DECOMPRESS, "lzma", "LZMAFile", ("read", "read1", "readline")),
    _Hooked(LoaderStage.DECOMPRESS, "zipfile", "ZipExtFile", ("read", "read1", "readline")),
    _Hooked(LoaderStage.DECOMPRESS, "lz4.frame", "", ("decompress",)),
    _Hooked(LoaderStage.DECODE, "PIL.ImageFile", "ImageFile", ("load",)),
    _Hooked(LoaderStage.DECODE, "PIL.Image", "Image", ("convert",)),
    _Hooked(LoaderStage.DECODE, "cv2", "", ("imread", "imdecode")),
    _Hooked(
        LoaderStage.DECODE,
        "torchvision.io.image",
        "",
        ("decode_image", "decode_jpeg", "decode_png", "decode_webp", "decode_gif", "read_image"),
    ),
    _Hooked(LoaderStage.DECODE, "torchvision.io", "", ("decode_image", "decode_jpeg", "decode_png", "read_image")),
    _Hooked(LoaderStage.DECODE, "torchvision.io.video", "", ("read_video",)),
    _Hooked(LoaderStage.DECODE, "torchaudio", "", ("load",)),
    _Hooked(LoaderStage.DECODE, "soundfile", "", ("read",)),
    _Hooked(LoaderStage.DECODE, "librosa", "", ("load",)),
    _Hooked(LoaderStage.DECODE, "pyarrow.parquet", "", ("read_table",)),
    _Hooked(LoaderStage.DECODE, "pyarrow.parquet", "ParquetFile", ("read", "read_row_group", "read_row_groups")),
    _Hooked(LoaderStage.DECODE, "pandas", "", ("read_parquet", "read_csv")),
    _Hooked(LoaderStage.DECODE, "numpy", "", ("load",)),
    _Hooked(LoaderStage.DECODE, "torch", "", ("load",)),
    _Hooked(LoaderStage.DECODE, "json", "", ("load", "loads")),
    _Hooked(LoaderStage.DECODE, "pickle", "", ("load", "loads")),
    _Hooked(_TRANSFORM, "PIL.Image", "Image", ("resize", "crop", "rotate", "transpose", "filter", "transform")),
    _Hooked(_TRANSFORM, "transformers.tokenization_utils_base", "PreTrainedTokenizerBase", ("__call__", "encode")),
)
# Classes whose objects hold a list of transforms in `transforms`, with the method that applies them in turn.
_CHAINS = (
    ("torchvision.transforms.transforms", "Compose", "__call__"),
    ("torchvision.transforms.v2._container", "Compose", "forward"),
)
# Classes of transforms, each of which is named by its own class.
_TRANSFORMS = (("albumentations.core.transforms_interface", "BasicTransform", "__call__"),)


class Hooks:
    """The hooks of this process; `look` adds those of modules that were imported since."""

    def __init__(self) -> None:
        self._missing = [(hooked.module, _hook_of(hooked)) for hooked in _LIBRARIES]
        self._missing += [(module, _chain_of(owner, name)) for module, owner, name in _CHAINS]
        self._missing += [(module, _transform_of(owner, name)) for module, owner, name in _TRANSFORMS]
        self._missing += STREAMS
        self._undos: list[Callable[[], None]] = []

    def open_files(self) -> None:
        """Hook `open`, under both of its names."""
        for module in (builtins, io):
            self._replace(module, "open", timed_open(module.open))

    def look(self) -> None:
        """Hook the modules that have been imported since the last look."""
        missing = []
        for module_name, hook in self._missing:
            module = sys.modules.get(module_name)
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                missing.append((module_name, hook))
            else:
                hook(self._replace, module)
        self._missing = missing

    def undo(self) -> None:
        while self._undos:
            self._undos.pop()()

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        original = getattr(owner, name)
        is_own = name in vars(owner)
        try:
            setattr(owner, name, replacement)
        except (AttributeError, TypeError):  # a compiled type
            return
        self._undos.append(lambda: setattr(owner, name, original) if is_own else delattr(owner, name))


_Replace = Callable[[Any, str, Any], None]
_Hook = Callable[[_Replace, Any], None]


def _hook_of(hooked: _Hooked) -> _Hook:
    def hook(replace: _Replace, module: Any) -> None:
        owner = getattr(module, hooked.owner, None) if hooked.owner else module
        for name in hooked.names:
            function = getattr(owner, name, None)
            if function is None or getattr(function, "flatout_stage", None) is not None:
                continue  # the module does not have it, or has taken it from one that is hooked
            stage = f"{_TRANSFORM}{name}" if hooked.stage == _TRANSFORM else hooked.stage
            replace(owner, name, _timed_function(stage, function))

    return hook


def _timed_function(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    is_transform = stage.startswith(_TRANSFORM)
    in_stage = timed(stage, function)
    opens_files = stage in (LoaderStage.READ, LoaderStage.DECODE)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # A transform that uses another one is the one that the script has named.
        if is_transform and STOPWATCH.runs_here() and STOPWATCH.stage.startswith(_TRANSFORM):
            return function(*args, **kwargs)
        if opens_files and args and STOPWATCH.runs_here():
            READ_PATHS.note(args[0])
        return in_stage(*args, **kwargs)

    call.flatout_stage = stage  # type: ignore[attr-defined]
    return call


def _chain_of(owner: str, name: str) -> _Hook:
    """Hook a class that applies the transforms in its list in turn, each of which becomes a stage."""

    def hook(replace: _Replace, module: Any) -> None:
        kind = getattr(module, owner, None)
        original = getattr(kind, name, None)
        if kind is None or original is None:
            return

        @wraps(original)
        def apply(self: Any, *inputs: Any) -> Any:
            is_simple = len(inputs) == 1 and type(self) is kind
            if not is_simple or not STOPWATCH.runs_here():
                return original(self, *inputs)
            (value,) = inputs
            for transform in self.transforms:
                value = _timed_function(_TRANSFORM + _name_of(transform), transform_call(transform))(value)
            return value

        replace(kind, name, apply)

    return hook


def _transform_of(owner: str, name: str) -> _Hook:
    """Hook the base class of transforms, each of which becomes a stage with the name of its class."""

    def hook(replace: _Replace, module: Any) -> None:
        kind = getattr(module, owner, None)
        original = getattr(kind, name, None)
        if kind is None or original is None:
            return

        @wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not STOPWATCH.runs_here():
                return original(self, *args, **kwargs)
            return _timed_function(_TRANSFORM + type(self).__name__, original)(self, *args, **kwargs)

        replace(kind, name, call)

    return hook


def transform_call(transform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls the transform; `wraps` needs one, and an object that can be called is none."""

    def call(value: Any) -> Any:
        return transform(value)

    return call


def _name_of(transform: Any) -> str:
    name = getattr(transform, "__name__", None)
    return name if isinstance(name, str) else type(transform).__name__
