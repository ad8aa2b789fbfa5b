"""The variants by name, and `compress`, which applies one to a model.

from flatout.inside.compression.variants import compress

compress(model, "int8-dynamic", skip=["head"])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from flatout.inside.compression.changed import Changed

# The module of each variant in this folder; it has a function `compress(model, skip)`.
MODULES: Mapping[str, str] = {
    "int8-dynamic": "int8_dynamic",
    "bf16": "bf16",
}


def compress(model: Any, variant: str, skip: Collection[str] = ()) -> Changed:
    """Change the model in place, except the modules named in `skip`.

    Raises NotAppliedError if the variant fits nothing in it, and KeyError if there is no such variant.
    """
    module = import_module(f"{__package__}.{MODULES[variant]}")
    changed: Changed = module.compress(model, skip)
    return changed
