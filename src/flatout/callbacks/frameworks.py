"""Callbacks of trainers, which count their steps for a `Recorder`. Each imports its framework when it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from flatout.callbacks.recorder import Recorder


def for_transformers(folder: str | PathLike[str], **options: Any) -> Any:
    """Return a callback for Hugging Face's `Trainer`; `options` are those of `Recorder`."""
    with _needs("transformers"):
        from transformers import TrainerCallback

    recorder = Recorder(folder, **options)

    class FlatoutCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.step()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.close()

    return FlatoutCallback()


def for_lightning(folder: str | PathLike[str], **options: Any) -> Any:
    """Return a callback for Lightning's `Trainer`; a step is one of the optimizer, as `global_step` counts them."""
    with _needs("lightning", "pytorch_lightning"):
        try:
            from lightning.pytorch import Callback
        except ImportError:
            from pytorch_lightning import Callback

    recorder = Recorder(folder, **options)

    class FlatoutCallback(Callback):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.last_step = 0

        def on_train_batch_end(self, trainer: Any, *arguments: Any, **keywords: Any) -> None:
            if trainer.global_step != self.last_step:
                self.last_step = trainer.global_step
                recorder.step()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.close()

    return FlatoutCallback()


def for_keras(folder: str | PathLike[str], **options: Any) -> Any:
    """Return a callback for Keras' `fit`. Raise ValueError unless torch is its backend, which the profiler records."""
    with _needs("keras"):
        import keras

    if keras.backend.backend() != "torch":
        backend = keras.backend.backend()
        raise ValueError(f"Keras runs on {backend}, which this does not record: set KERAS_BACKEND=torch")
    recorder = Recorder(folder, **options)

    class FlatoutCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
        def on_train_batch_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.step()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.close()

    return FlatoutCallback()


@contextmanager
def _needs(package: str, *older: str) -> Iterator[None]:
    """Raise ModuleNotFoundError, which says in one line what to install, if the package and its older names are absent.

    A package that is installed, and lacks one that it imports, says so itself.
    """
    try:
        yield
    except ImportError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in (package, *older):
            raise
        raise ModuleNotFoundError(
            f"this callback needs {package}, which is not installed: pip install {package}", name=package
        ) from error
