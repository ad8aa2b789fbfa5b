"""Callbacks of trainers, which count their steps for a `Recorder`. Each imports its framework when it is made."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import Any

from flatout.callbacks.recorder import Recorder


def for_transformers(folder: str | PathLike[str], **options: Any) -> Any:
    """Return a callback for Hugging Face's `Trainer`; `options` are those of `Recorder`."""
    callback_class: Any = _framework("transformers", package="transformers").TrainerCallback
    recorder = Recorder(folder, **options)

    class FlatoutCallback(callback_class):  # type: ignore[misc, unused-ignore]
        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.step()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.close()

    return FlatoutCallback()


def for_lightning(folder: str | PathLike[str], **options: Any) -> Any:
    """Return a callback for Lightning's `Trainer`; a step is one of the optimizer, as `global_step` counts them."""
    callback_class: Any = _framework("lightning.pytorch", "pytorch_lightning", package="lightning").Callback
    recorder = Recorder(folder, **options)

    class FlatoutCallback(callback_class):  # type: ignore[misc, unused-ignore]
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
    keras: Any = _framework("keras", package="keras")
    if keras.backend.backend() != "torch":
        backend = keras.backend.backend()
        raise ValueError(f"Keras runs on {backend}, which this does not record: set KERAS_BACKEND=torch")
    recorder = Recorder(folder, **options)
    callback_class: Any = keras.callbacks.Callback

    class FlatoutCallback(callback_class):  # type: ignore[misc, unused-ignore]
        def on_train_batch_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.step()

        def on_train_end(self, *arguments: Any, **keywords: Any) -> None:
            recorder.close()

    return FlatoutCallback()


def _framework(*modules: str, package: str) -> Any:
    """Import the first of the modules that is installed. Raises ModuleNotFoundError: what to install, in one line."""
    damaged: ImportError | None = None
    for name in modules:
        try:
            return import_module(name)
        except ImportError as error:
            is_missing = (error.name or "").partition(".")[0] == name.partition(".")[0]
            if not is_missing:
                damaged = damaged or error
    if damaged is not None:  # it is installed, and says itself what it lacks
        raise damaged
    raise ModuleNotFoundError(
        f"this callback needs {package}, which is not installed: pip install {package}", name=package
    )
