"""Read a model's shape from a Hugging Face `config.json`: the layers of each kind, with exact numbers of parameters.

Types that no reader knows are refused by name, and so are keys that a type does not have: a plan is never made from
widths that leave a part of the model out.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.supported import READERS, RENAMED, SUPPORTED
from flatout.records.plan import Workload

_BY_WIDTHS = "give its widths instead: --model layers=N,hidden=N,heads=N,ffn=N,vocab=N (experts=N,topk=N,expert_ffn=N)"


def from_config(path: Path) -> Workload:
    """Return the shape in a `config.json`. Raise InputError if it is unreadable, or of a type that no reader knows."""
    try:
        config = decode_json(read_bytes(path))
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"`{path}` is not valid JSON: {error}", hint="pass the config.json of a Hugging Face model"
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"`{path}` must hold one JSON object, but holds a {type(config).__name__}")
    return from_values(path, config)


def from_values(path: Path, values: dict[str, Any]) -> Workload:
    """Return the shape in a parsed config; `path` is for messages. Raise InputError if it cannot be read."""
    model_type = _model_type(path, values)
    config = ModelConfig(path, values, model_type)
    try:
        workload = READERS[model_type](config)
        config.refuse_unknown_structure()
    except KeyError as error:
        raise InputError(f"`{path}` must say `{error.args[0]}`, but has {_some_names(values)}") from error
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise InputError(f"`{path}` has a value of the wrong type: {error}") from error
    return workload


def is_supported(model_type: str) -> bool:
    """Whether a reader knows this type of config."""
    return RENAMED.get(model_type, model_type) in SUPPORTED


def _model_type(path: Path, values: dict[str, Any]) -> str:
    """Return the type whose reader reads the config. Raise InputError if there is none."""
    named = values.get("model_type")
    if not isinstance(named, str) or not named:
        raise InputError(
            f"`{path}` must say `model_type`, but has {_some_names(values)}",
            hint="pass the config.json of a Hugging Face model, or " + _BY_WIDTHS,
        )
    model_type = RENAMED.get(named, named)
    if model_type in SUPPORTED:
        return model_type
    similar = difflib.get_close_matches(model_type, SUPPORTED, n=1)
    nearest = f"the nearest supported type is `{similar[0]}`; " if similar else ""
    raise InputError(
        f"models of type `{named:.60}` cannot be planned: their layers are unknown (`{path}`)",
        hint=f"{nearest}docs/reference/models.md lists all types; {_BY_WIDTHS}",
    )


def _some_names(values: dict[str, Any]) -> str:
    names = sorted(values)
    if not names:
        return "nothing in it"
    return f"only: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
