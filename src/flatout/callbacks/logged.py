"""Diagnose the traces that callbacks wrote, and log the result to the tracker whose run is active in this process."""

from __future__ import annotations

from pathlib import Path


def log_diagnosis(folder: Path, tracker: str, *, step: int) -> str:
    """Log the diagnosis of the traces in `folder`, and return what was logged, in one line."""
    from flatout.api import diagnose
    from flatout.run_trackers.stores import log_to_mlflow, log_to_tensorboard, log_to_wandb
    from flatout.run_trackers.values import logged_values

    record = diagnose(folder).to_dict()
    values = logged_values(record)
    if tracker == "mlflow":
        where = f"run {log_to_mlflow(values, record, step=step)} of MLflow"
    elif tracker == "wandb":
        where = f"{log_to_wandb(values, folder=folder)}"
    else:
        where = f"{log_to_tensorboard(values, folder=folder / 'tensorboard', step=step)}"
    return f"logged {len(values.numbers)} values to {where}"
