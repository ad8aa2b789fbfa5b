"""The groups of a layout, as Megatron-LM prints them."""

from __future__ import annotations

from flatout.placement import groups
from flatout.placement.groups import LayoutDegrees


def test_groups_are_those_of_megatrons_documentation() -> None:
    # initialize_model_parallel's docstring: 16 GPUs, tensor parallelism 2, pipeline parallelism 4.
    degrees = LayoutDegrees(tp=2, dp=2, pp=4)
    assert groups.tensor_groups(degrees) == tuple((first, first + 1) for first in range(0, 16, 2))
    assert groups.data_groups(degrees) == (
        *((0, 2), (1, 3), (4, 6), (5, 7)),
        *((8, 10), (9, 11), (12, 14), (13, 15)),
    )
    assert sorted(groups.pipeline_groups(degrees)) == [
        *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ]


def test_context_parallel_ranks_sum_gradients_together_with_the_replicas() -> None:
    degrees = LayoutDegrees(tp=2, cp=2, dp=2)
    assert groups.context_groups(degrees) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups.data_groups(degrees) == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_experts_divide_the_ranks_of_a_stage() -> None:
    degrees = LayoutDegrees(dp=4, pp=2, ep=2)
    assert groups.expert_groups(degrees) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups.expert_data_groups(degrees) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_shards_are_consecutive_ranks_of_a_group_and_copies_are_across_them() -> None:
    inner, outer = groups.split(((0, 2, 4, 6), (1, 3, 5, 7)), 2)
    assert inner == ((0, 2), (4, 6), (1, 3), (5, 7))
    assert outer == ((0, 4), (2, 6), (1, 5), (3, 7))
