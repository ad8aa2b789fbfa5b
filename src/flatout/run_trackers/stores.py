"""Write the values of a result to a store: MLflow, Weights & Biases (offline), or TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flatout.errors import InputError, OutputError, UsageError
from flatout.run_trackers.values import LoggedValues

SUMMARY_TAG = "flatout/summary"
RESULT_FILE = "flatout/result.json"
_LIBRARIES = {"--mlflow": "mlflow", "--wandb": "wandb", "--tensorboard": "tensorboard"}


def log_to_mlflow(
    values: LoggedValues,
    record: Mapping[str, Any],
    *,
    uri: str | None = None,
    experiment: str | None = None,
    run_id: str | None = None,
    step: int | None = None,
) -> str:
    """Log to a run of MLflow, and return its ID: `run_id`, else the active run, else a new one in `experiment`.

    `uri` is the tracking server or folder; None: as MLflow is set up. The result itself is kept as an artifact.
    """
    mlflow = _library("--mlflow", "mlflow-skinny")
    try:
        if uri is not None:
            mlflow.set_tracking_uri(uri)
        active = mlflow.active_run()
        if run_id is None and active is not None:
            return _to_run(mlflow, active.info.run_id, values, record, step)
        if run_id is None:
            mlflow.set_experiment(experiment or "flatout")
        with mlflow.start_run(run_id=run_id) as run:
            return _to_run(mlflow, run.info.run_id, values, record, step)
    except mlflow.exceptions.MlflowException as error:
        raise OutputError(f"MLflow refused the result: {str(error).splitlines()[0]}") from error


def _to_run(mlflow: Any, run_id: str, values: LoggedValues, record: Mapping[str, Any], step: int | None) -> str:
    mlflow.log_metrics(values.numbers, step=step)
    mlflow.set_tags(values.tags)
    mlflow.log_text(json.dumps(record, indent=1), RESULT_FILE)
    return str(run_id)


def log_to_wandb(values: LoggedValues, *, folder: Path, project: str = "flatout") -> Path:
    """Log to a new offline run of Weights & Biases below `folder`, or to the run that is active, and return its folder.

    Nothing is sent: `wandb sync` does that when the user says so.
    """
    wandb = _library("--wandb", "wandb")
    active = wandb.run
    try:
        run = active
        if run is None:
            folder.mkdir(parents=True, exist_ok=True)
            settings = wandb.Settings(silent=True, console="off")
            run = wandb.init(mode="offline", dir=str(folder), project=project, settings=settings)
        run.log(values.numbers)
        run.summary.update({**values.tags, **({SUMMARY_TAG: values.summary} if values.summary else {})})
        path = Path(run.dir).parent
        if active is None:
            run.finish()
    except (OSError, wandb.errors.Error) as error:
        raise OutputError(f"Weights & Biases refused the result: {str(error).splitlines()[0]}") from error
    return path


def log_to_tensorboard(values: LoggedValues, *, folder: Path, step: int = 0) -> Path:
    """Write an event file of TensorBoard to `folder`, and return the folder."""
    _library("--tensorboard", "tensorboard")
    writer_module = import_module("tensorboard.summary.writer.event_file_writer")
    event_pb2 = import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = import_module("tensorboard.compat.proto.summary_pb2")
    try:
        writer = writer_module.EventFileWriter(str(folder), filename_suffix=".flatout")
    except OSError as error:
        raise OutputError(f"`{folder}` cannot be written: {(error.strerror or str(error)).lower()}") from error
    scalars = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.numbers.items()]
    texts = {**values.tags, SUMMARY_TAG: values.summary}
    text_values = [_text_value(tag, text) for tag, text in texts.items() if text]
    for value in (*scalars, *text_values):
        writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    return folder


def _text_value(tag: str, text: str) -> Any:
    """Return a text as TensorBoard's text page shows it."""
    summary_pb2 = import_module("tensorboard.compat.proto.summary_pb2")
    tensor_pb2 = import_module("tensorboard.compat.proto.tensor_pb2")
    shape_pb2 = import_module("tensorboard.compat.proto.tensor_shape_pb2")
    string_type = 7  # DT_STRING of tensorboard.compat.proto.types_pb2
    shape = shape_pb2.TensorShapeProto(dim=[shape_pb2.TensorShapeProto.Dim(size=1)])
    tensor = tensor_pb2.TensorProto(dtype=string_type, string_val=[text.encode()], tensor_shape=shape)
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
    return summary_pb2.Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)


def _library(option: str, package: str) -> Any:
    """Return a tracker's library. Raise UsageError if it is not installed."""
    name = _LIBRARIES[option]
    try:
        return import_module(_LIBRARIES[option])
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise InputError(f"{name} is installed, but cannot be imported: {error}") from error
        raise UsageError(f"`{option}` needs {name}, which is not installed", hint=f"pip install {package}") from error
