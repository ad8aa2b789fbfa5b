"""Look up the keys and default values of a model type's `config.json`, in `model_configs.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

_FILE = Path(__file__).with_name("model_configs.json")


class ConfigType(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one model type's config."""

    defaults: dict[str, Any]
    optional: tuple[str, ...] = ()  # keys without a default
    names: dict[str, str] = {}  # another name of a key -> its name in the config


class _Content(msgspec.Struct, frozen=True):
    source: str
    types: dict[str, ConfigType]


@cache
def _content() -> _Content:
    return msgspec.json.decode(_FILE.read_bytes(), type=_Content)


def config_type(model_type: str) -> ConfigType:
    """Return the keys of a model type; without any if the type is not in the file."""
    return _content().types.get(model_type, ConfigType(defaults={}))
