"""Make each stage object of a WebDataset pipeline, or of a stream of Hugging Face datasets, a stage of the batch.

In: these libraries' own iterators, as they are made. Out: the same items, from iterators whose `next` is timed. An
iterator asks the one before it for items, so that the stages nest, and each is timed without those before it. A stage
has the name of the function that the script gave it, or that of the library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flatout.inside.loader_stages.stopwatch import STOPWATCH
from flatout.inside.protocol import LoaderStage

_Replace = Callable[[Any, str, Any], None]

# WebDataset's own stages that are not changes of a sample.
_OF_WEBDATASET = {
    "url_opener": LoaderStage.READ,
    "tar_file_expander": LoaderStage.READ,
    "tarfile_samples": LoaderStage.READ,
    "tarfile_to_samples": LoaderStage.READ,
    "cached_tarfile_to_samples": LoaderStage.READ,
    "FileCache": LoaderStage.READ,
    "StreamingOpen": LoaderStage.READ,
    "Decoder": LoaderStage.DECODE,
    "batched": LoaderStage.COLLATE,
}
_OF_HUGGING_FACE = {
    "Arrow": LoaderStage.READ,
    "": LoaderStage.CODE,  # of the script's generator
    "Formatted": LoaderStage.DECODE,
}
_METHODS = ("__iter__", "_iter_arrow")


class TimedIterator:
    """An iterator whose items are made in a stage."""

    __slots__ = ("_iterator", "_stage")

    def __init__(self, stage: str, iterator: Any) -> None:
        self._stage = stage
        self._iterator = iterator

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        if not STOPWATCH.runs_here() or STOPWATCH.stage == self._stage:
            return next(self._iterator)
        STOPWATCH.enter(self._stage)
        try:
            return next(self._iterator)
        finally:
            STOPWATCH.leave()

    def __getattr__(self, name: str) -> Any:  # a generator's `close`
        return getattr(self._iterator, name)


def hook_webdataset(replace: _Replace, module: Any) -> None:
    """Time what `DataPipeline.invoke` makes of each stage."""
    kind = getattr(module, "DataPipeline", None)
    original = getattr(kind, "invoke", None)
    if original is None:
        return

    @wraps(original)
    def invoke(self: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
        iterator = original(self, stage, *args, **kwargs)
        is_of_loader = not args  # the first stage: the list of shards, or another loader
        return iterator if is_of_loader or not hasattr(iterator, "__next__") else TimedIterator(_of(stage), iterator)

    replace(kind, "invoke", invoke)


def _of(stage: Any) -> str:
    """Return the stage of an object of a WebDataset pipeline."""
    name = _name_of(getattr(stage, "f", stage)).strip("_")
    given = [value for value in getattr(stage, "args", ()) if callable(value)]
    if name in ("map", "map_tuple") and given:
        name = _name_of(given[0])
    return _OF_WEBDATASET.get(name, LoaderStage.TRANSFORM + name)


def hook_hugging_face(replace: _Replace, module: Any) -> None:
    """Time the iterators of all classes whose objects are stages of a stream."""
    for class_name, kind in list(vars(module).items()):
        is_stage = isinstance(kind, type) and kind.__module__ == module.__name__ and class_name.endswith("Iterable")
        for method in _METHODS if is_stage and not class_name.startswith("_") else ():
            if method in vars(kind):
                replace(kind, method, _timed_method(class_name, vars(kind)[method]))


def _timed_method(class_name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    library_name = class_name.removesuffix("Iterable").removesuffix("Examples")
    known = _OF_HUGGING_FACE.get(library_name)

    @wraps(original)
    def iterate(self: Any, *args: Any, **kwargs: Any) -> TimedIterator:
        function = getattr(self, "function", None)
        name = library_name if function is None else _name_of(function)
        stage = known if known is not None else LoaderStage.TRANSFORM + name
        return TimedIterator(stage, original(self, *args, **kwargs))

    return iterate


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


STREAMS = (
    ("webdataset.pipeline", hook_webdataset),
    ("datasets.iterable_dataset", hook_hugging_face),
)
