"""A real server: `transformers serve` with a Llama of random weights, untouched and with continuous batching.

The untouched server is started once and measured twice, which shows how far its answers differ by themselves; the
changed one is a start of its own. `benchmarks/serving_transformers.py` has a whole tuning of it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
from tests.serving.tiny_model import write_tiny_llama

from flatout.records.serving import Cause, ServerTrial
from flatout.records.trial import BASELINE
from flatout.serving.answers import gate, noise_agreement
from flatout.serving.candidates import ServerMachine, candidates
from flatout.serving.engine import known_engines
from flatout.serving.first_start import words_per_token
from flatout.serving.judge import Judge
from flatout.serving.load import Load, TracedLoad
from flatout.serving.processes import ProcessBackend
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerTrialSetup, measure_server, run_trial
from flatout.serving.words import ServerCommand

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fastapi", "openai", "uvicorn")),
    reason="transformers serve needs fastapi, openai and uvicorn",
)
SERVER = (sys.executable, "-c", "from transformers.cli.transformers import main; main()")
BATCHES = ("--cb-num-blocks", "64", "--cb-max-batch-tokens", "128")  # of continuous batching, if it is on
LOAD = Load(
    rates=(4.0,),
    requests=4,
    prompt_tokens=20,
    output_tokens=3,
    held_prompts=2,
    held_tokens=8,
    timeout_s=60.0,
    seed=1,
)


async def pair(
    backend: ProcessBackend, command: ServerCommand
) -> tuple[float | None, ServerTrial, ServerTrial, ServerTrial]:
    """Measure one start of the untouched server twice, as two trials, and then one start of the changed server."""
    engine = known_engines()["transformers"]
    traced = TracedLoad(load=LOAD, path="")
    plan = ServerTrialSetup(
        engine=engine, traced=traced, limits=parse_slo("p99 ttft<30s"), rates_per_s=(4.0,), words_per_token=0.2
    )
    running = await backend.start(BASELINE, (), 0)
    try:
        per_token = await words_per_token(running, plan)
        first = await measure_server(running, plan, BASELINE, 0)
        second = await measure_server(running, plan, BASELINE, 1)
        running.check()
    finally:
        await running.stop()
    cause = Cause(name="under-batched", title="", share=None)
    machine = ServerMachine(num_gpus=0, cores=2)
    change = candidates(engine, command, [cause], machine=machine, allowed="exact")[0].change
    assert change.name == "continuous-batching"
    return per_token, first, second, await run_trial(backend, plan, change.name, (change,), 2)


def test_a_pair_of_starts_of_transformers_serve_is_measured_with_equal_answers(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", hidden=32, layers=1, heads=2)
    command = ServerCommand(
        words=(
            *SERVER,
            "serve",
            str(model),
            "--device",
            "cpu",
            "--cb-num-blocks",
            "64",
            "--cb-max-batch-tokens",
            "128",
        ),
        environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    backend = ProcessBackend(
        command, known_engines()["transformers"], LOAD, tmp_path, mark=str(tmp_path), start_limit_s=110.0
    )
    per_token, first, second, changed = asyncio.run(pair(backend, command))
    assert per_token is not None
    assert 0.1 < per_token < 0.3  # the tokenizer is one of bytes, and words have four to ten with their space
    for trial in (first, second, changed):
        assert trial.outcome == "completed", trial.problem
        (point,) = trial.points
        assert (point.num_completed, point.num_failed, point.num_cut) == (4, 0, 0)
        assert point.tokens_of_request == (3, 3, 3, 3)
        assert point.ttft is not None
        assert not trial.windows[0].is_from_metrics
    assert first.answer_tokens == (8, 8)
    assert first.answers[0] != first.answers[1]
    assert noise_agreement([first, second]) == 1.0
    assert gate(changed, [first, second], "exact").outcome == "passed"
    assert changed.took_s < 60
    judge = Judge("goodput")
    for trial in (first, second, changed):
        judge.add(trial)
    verdict = judge.verdict(changed.arm, BASELINE, num_screened=1, chosen_by=frozenset({2}), is_last=True)
    assert verdict.verdict == "undecided"  # one start proves nothing
