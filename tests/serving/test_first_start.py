"""The first start of a simulated server: which rates are sent, and how many words make a token."""

from __future__ import annotations

import pytest
from tests.serving.simulated import Backend, table
from tests.serving.virtual_time import run_virtual

from flatout.records.serving import ServerTrial
from flatout.serving.first_start import first_start
from flatout.serving.load import Load, TracedLoad
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerTrialSetup
from flatout.serving.words import ServerCommand


def started(begin: float) -> tuple[ServerTrialSetup, ServerTrial]:
    load = Load(rate=begin, requests=40, prompt_tokens=8, output_tokens=8, held_prompts=1)
    plan = ServerTrialSetup(
        engine=table(),
        traced=TracedLoad(load=load, path=""),
        limits=parse_slo("p90 ttft<300ms"),
        rates_per_s=(),
    )
    command = ServerCommand(words=("fake_server.py", "--max-num-seqs", "1", "--noise", "0"))
    plan, trial, _ = run_virtual(first_start(Backend(command, table()), plan, lambda _: None))
    return plan, trial


@pytest.mark.parametrize("begin", [2.0, 200.0])
def test_rates_are_searched_around_what_the_server_can_serve(begin: float) -> None:
    """An answer takes 9 iterations of 4.2 ms, so the server's capacity is 26 requests a second."""
    plan, trial = started(begin)
    low, best, _, high = plan.rates_per_s
    assert 13 < best < 32
    assert (low, high) == (pytest.approx(0.7 * best, rel=0.02), pytest.approx(2.25 * best, rel=0.02))
    assert [point.rate_per_s for point in trial.points] == list(plan.rates_per_s)
    assert trial.points[0].is_within
    assert not trial.points[-1].is_within
    assert plan.words_per_token == 1.0  # the simulated server counts words
