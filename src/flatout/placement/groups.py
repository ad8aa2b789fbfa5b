"""The process groups of a layout.

In: the degrees of parallelism. Out: the ranks of each group. Ranks are numbered as Megatron-LM numbers them: tensor
parallelism first, then context, data and pipeline parallelism; experts divide the ranks of a stage, tensor parallelism
of experts first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Groups = tuple[tuple[int, ...], ...]


class LayoutDegrees(NamedTuple):
    """The degrees of a layout; their product without `ep` and `etp` is the number of ranks."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp


def tensor_groups(degrees: LayoutDegrees) -> Groups:
    return _lines(_dense_grid(degrees), axis=3)


def context_groups(degrees: LayoutDegrees) -> Groups:
    return _lines(_dense_grid(degrees), axis=2)


def data_groups(degrees: LayoutDegrees) -> Groups:
    """Return the groups that sum gradients: context-parallel ranks have the same weights."""
    grid = _dense_grid(degrees).reshape(degrees.pp, degrees.dp * degrees.cp, degrees.tp)
    return _lines(grid, axis=1)


def pipeline_groups(degrees: LayoutDegrees) -> Groups:
    return _lines(_dense_grid(degrees), axis=0)


def expert_groups(degrees: LayoutDegrees) -> Groups:
    return _lines(_expert_grid(degrees), axis=2)


def expert_data_groups(degrees: LayoutDegrees) -> Groups:
    """Return the groups whose ranks have the same experts, and sum their gradients."""
    return _lines(_expert_grid(degrees), axis=1)


def split(groups: Groups, size: int) -> tuple[Groups, Groups]:
    """Split each group into consecutive subgroups of `size`; return these, and the groups across them."""
    inner: list[tuple[int, ...]] = []
    outer: list[tuple[int, ...]] = []
    for group in groups:
        parts = [group[start : start + size] for start in range(0, len(group), size)]
        inner += parts
        outer += zip(*parts, strict=True)
    return tuple(inner), tuple(outer)


def _dense_grid(degrees: LayoutDegrees) -> np.ndarray:
    return np.arange(degrees.num_ranks).reshape(degrees.pp, degrees.dp, degrees.cp, degrees.tp)


def _expert_grid(degrees: LayoutDegrees) -> np.ndarray:
    num_copies = degrees.num_ranks // (degrees.pp * degrees.ep * degrees.etp)
    return np.arange(degrees.num_ranks).reshape(degrees.pp, num_copies, degrees.ep, degrees.etp)


def _lines(grid: np.ndarray, axis: int) -> Groups:
    """Return the ranks along one axis of the grid, one group for each position in the other axes."""
    lines = np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])
    return tuple(tuple(int(rank) for rank in line) for line in lines)
