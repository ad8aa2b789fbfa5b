"""JAX jobs made now, with the JAX of today: planted causes in two processes over gloo, and a job under `profile`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout.api import diagnose

LABELLED = Path(__file__).parents[2] / "benchmarks" / "jax_labelled_jobs.py"
TRAINING = """
import jax, jax.numpy as jnp

@jax.jit
def train_step(weights, rows):
    gradient = jax.grad(lambda weights: jnp.mean(jnp.tanh(rows @ weights) ** 2))(weights)
    return weights - 0.1 * gradient

weights, rows = jnp.eye(512) * 0.5, jnp.ones((512, 512))
for step in range(60):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        weights = jax.block_until_ready(train_step(weights, rows))
"""


LARGE = 0.25  # of the step: what other work on busy cores does to a rank is less


@pytest.mark.parametrize(
    ("cause", "finding"),
    [("slow-compute", "straggler"), ("slow-input", "data-loading"), ("late-start", "host-bound"), ("healthy", None)],
)
def test_a_planted_cause_is_found_on_its_rank(tmp_path: Path, cause: str, finding: str | None) -> None:
    command = [sys.executable, str(LABELLED), "--cause", cause, "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    result = diagnose(tmp_path / f"jax_{cause.replace('-', '_')}.tar.xz")
    if finding is not None:
        assert (finding, (1,)) in [(each.name, each.ranks) for each in result.findings]
    else:
        assert not [each for each in result.findings if len(each.ranks) == 1 and each.share_of_step > LARGE]
    assert all(abs(sum(rank.parts_s.values()) - rank.window_s) < 1e-6 for rank in result.ranks)


def test_an_unchanged_job_is_recorded_with_its_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    out = tmp_path / "recording"
    profiling = [sys.executable, "-m", "flatout", "profile", "--steps", "5", "--out", str(out), "--"]
    done = subprocess.run([*profiling, sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = diagnose(out)
    assert (result.job.num_ranks, result.job.num_steps) == (1, 5)
    assert result.ranks[0].parts_s["compute"] > 0
