"""Which batches are timed."""

from __future__ import annotations

from flatout.inside.loader_stages.budget import MAX_SHARE, NUM_FIRST, Budget, cost_per_stage_s


def test_the_first_batches_are_timed_whatever_it_costs() -> None:
    budget = Budget(cost_s=1.0)
    for _ in range(NUM_FIRST):
        assert budget.allows(elapsed_s=0.0)
        budget.add(num_stages=100, other_s=0.0)
    assert not budget.allows(elapsed_s=0.0)


def test_a_batch_is_timed_as_long_as_the_watch_takes_its_share_at_most() -> None:
    budget = Budget(cost_s=1e-6)
    for _ in range(NUM_FIRST):
        budget.add(num_stages=1000, other_s=0.001)
    spent_s = NUM_FIRST * 0.002
    assert budget.spent_s == spent_s
    assert budget.allows(elapsed_s=spent_s / MAX_SHARE * 1.001)
    assert not budget.allows(elapsed_s=spent_s / MAX_SHARE * 0.999)


def test_the_share_is_half_of_a_hundredth() -> None:
    assert MAX_SHARE == 0.005


def test_a_stage_costs_microseconds() -> None:
    assert 1e-8 < cost_per_stage_s() < 1e-3
