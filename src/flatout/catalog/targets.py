"""The layouts that each training framework can run, from `targets.toml`.

In: the facts of one layout, or columns of the facts of many. Out: for each framework, the first limit that a layout
breaks. The facts are described in the file. Nothing is predicted here.
"""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from flatout.records.plan import FULL_TRAINING, Layout, Training, Workload, has_own_split

_FILE = Path(__file__).with_name("targets.toml")
# A number that the fact must equal, a list of which it must equal one, or a bound such as `>1`.
Condition = int | str | tuple[int | str, ...]
Facts = Mapping[str, Any]  # each a number or a word, or for many layouts a column of numbers
NO_LIMIT = -1
_BOUND = re.compile(r"(>=|<=|>|<)(\d+)")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class LayoutLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout for which all of `when` holds must fulfil all of `needs`."""

    needs: dict[str, Condition]
    why: str
    source: str
    when: dict[str, Condition] = {}

    def is_broken(self, facts: Facts) -> Any:
        """Whether the layout, or each layout of the columns, breaks the limit."""
        return np.logical_and(_all_hold(self.when, facts), np.logical_not(_all_hold(self.needs, facts)))


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training framework, in the version that its limits were read in."""

    name: str
    title: str
    version: str
    source: str
    date: str
    columns: dict[str, str]  # how a table of measured runs describes it, which says what it does in a step
    software: dict[str, bool | float] = {}  # fields of `Software` in which the settings written for it differ
    limit: tuple[LayoutLimit, ...] = ()

    def broken_limit(self, facts: Facts) -> LayoutLimit | None:
        """Return the first limit that the layout breaks; None if the framework can run it."""
        return next((limit for limit in self.limit if limit.is_broken(facts)), None)

    def broken_limits(self, facts: Facts, num_layouts: int) -> npt.NDArray[np.intp]:
        """Return for each layout of the columns the index of the first limit that it breaks, or NO_LIMIT."""
        first = np.full(num_layouts, NO_LIMIT, dtype=np.intp)
        for index, limit in enumerate(self.limit):
            first[np.logical_and(limit.is_broken(facts), first == NO_LIMIT)] = index
        return first


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target: tuple[Target, ...]


@cache
def targets() -> tuple[Target, ...]:
    """Return the frameworks, in the order of the file."""
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _File).target


def target_named(name: str) -> Target:
    """Return the framework of this name. Raise KeyError if there is none."""
    return {target.name: target for target in targets()}[name]


def runners(layout: Layout, workload: Workload, precision: str, training: Training = FULL_TRAINING) -> tuple[str, ...]:
    """Return the names of the frameworks that can run the layout."""
    facts = facts_of_layout(layout, workload, precision, training)
    return tuple(target.name for target in targets() if target.broken_limit(facts) is None)


def facts_of_layout(
    layout: Layout, workload: Workload, precision: str, training: Training = FULL_TRAINING
) -> dict[str, Any]:
    """Return the facts of one layout."""
    columns = {
        **{name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "shard")},
        "sp": int(layout.sequence_parallel),
        "offload": int(layout.offload),
        "micro_batch": layout.micro_batch,
        "num_micro": layout.num_micro_batches,
        "gpipe": int(layout.schedule == "gpipe"),
        "zero_bubble": int(layout.schedule == "zero-bubble"),
        "selective": int(layout.recompute == "selective"),
        "full": int(layout.recompute == "full"),
    }
    return with_workload(columns, workload, precision, training)


def _has_own_split(num_layers: int, pp: npt.NDArray[Any], vpp: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return 1 for the layouts whose settings must list the chunks one by one, as in `has_own_split`."""
    pairs, index = np.unique(np.stack([np.ravel(pp), np.ravel(vpp)]), axis=1, return_inverse=True)
    of_pairs = np.array([int(has_own_split(num_layers, int(stages), int(chunks))) for stages, chunks in pairs.T])
    return np.asarray(of_pairs[np.ravel(index)].reshape(np.shape(pp)))


def with_workload(
    columns: Facts, workload: Workload, precision: str, training: Training = FULL_TRAINING
) -> dict[str, Any]:
    """Return the columns of the layouts with the facts that follow from them and from what is trained how."""
    tp, pp, cp, ep, dp = (np.asarray(columns[name]) for name in ("tp", "pp", "cp", "ep", "dp"))
    zero, shard = np.asarray(columns["zero"]), np.asarray(columns["shard"])
    replicas = dp * cp
    group = np.where(shard > 0, shard, replicas)
    sharding_ranks = np.where(zero > 0, group, cp)
    num_groups = replicas // group
    expert_replicas = np.maximum(tp * replicas // ep, 1)
    return {
        **columns,
        "replicas": replicas,
        "experts": workload.num_experts,
        "is_language_model": int(workload.is_causal and not workload.patch_inputs),
        "precision": precision,
        "gradients": training.gradients,
        "pure_bf16": int(training.is_pure_bf16),
        "kv_heads_rest": workload.num_kv_heads % tp,
        "heads_rest": (workload.num_heads // tp) % cp,
        "shard_rest": group % cp + replicas % group,
        "expert_rest": (sharding_ranks * tp) % ep,
        "expert_groups_rest": np.where(workload.num_experts > 0, expert_replicas % num_groups, 0),
        "own_split": _has_own_split(workload.num_layers, pp, np.asarray(columns["vpp"])),
        "micro_batches_per_stage": np.asarray(columns["num_micro"]) / pp,
    }


def _all_hold(conditions: Mapping[str, Condition], facts: Facts) -> Any:
    holds: Any = True
    for name, condition in conditions.items():
        holds = np.logical_and(holds, _holds(condition, facts[name]))
    return holds


def _holds(condition: Condition, fact: Any) -> Any:
    if isinstance(condition, tuple):
        is_equal: Any = False
        for value in condition:
            is_equal = np.logical_or(is_equal, fact == value)
        return is_equal
    bound = _BOUND.fullmatch(condition) if isinstance(condition, str) else None
    if bound is None:
        return fact == condition
    return _OPERATORS[bound[1]](fact, int(bound[2]))
