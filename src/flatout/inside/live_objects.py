"""Find live objects of the script, such as models and loaders, through the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import chain
from typing import Any

from flatout.inside.collector import COLLECTOR


def live_objects(*kinds: type) -> list[Any]:
    """Return all live objects of these classes; the class is looked up without calling code of the object."""
    candidates = chain(gc.get_objects(), COLLECTOR.frozen())
    # An object that the script has unfrozen since is in both.
    found = {id(candidate): candidate for candidate in candidates if issubclass(type(candidate), kinds)}
    return list(found.values())


def root_modules(modules: Iterable[Any], parameter_ids: set[int]) -> list[Any]:
    """Return the outermost of the modules that hold one of the parameters with these `id` values."""
    modules = [module for module in modules if "_modules" in module.__dict__]  # otherwise it is still being created
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = (module for module in modules if id(module) not in inner)
    return [root for root in roots if any(id(parameter) in parameter_ids for parameter in root.parameters())]


def parameters_of(optimizers: Iterable[Any]) -> list[Any]:
    return [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]
