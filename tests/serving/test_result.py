"""What a tuning of a server is reported and emitted as; the tuning is one of the simulated server."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.serving.simulated import table, tuned

from flatout.emit.serving import emit_serving
from flatout.records.serving import LoadPoint, ServerChange, ServerTrial, ServingTuning
from flatout.report.serving_html import serving_html
from flatout.report.serving_text import serving_text
from flatout.report.terminal import TextStyle
from flatout.serving.candidates import ServerMachine
from flatout.serving.judge import as_result, cost
from flatout.serving.load import Load, TracedLoad
from flatout.serving.loop import ServingOptions
from flatout.serving.result import load_curve, tuning_result
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerTrialSetup
from flatout.serving.words import parse_command

FOLDER = Path("out")


@cache
def tuning() -> ServingTuning:
    words = ("--max-num-seqs", "4")
    found = tuned(words, seed=1, rates=(90,), requests=32, prompt_tokens=16, output_tokens=16, slo=_SLO)
    plan = ServerTrialSetup(
        engine=table(),
        traced=TracedLoad(load=Load(rates=(90,), requests=32), path="load.toml"),
        limits=parse_slo(_SLO),
        rates_per_s=(90.0,),
    )
    command = parse_command("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz1234 fake_server.py --max-num-seqs 4 --port 8000")
    return tuning_result(
        found,
        plan,
        ServingOptions(),
        command,
        machine=ServerMachine(num_gpus=1, cores=8.0),
        notes=("a note",),
        took_s=120.0,
    )


_SLO = "p99 ttft<100ms"


def test_the_text_says_what_was_adopted_why_and_what_was_tried() -> None:
    text = " ".join(serving_text(tuning(), FOLDER, style=TextStyle(width=100)).split())
    assert text.startswith("max-num-seqs=16: better, ")
    for words in (
        "in good requests per second at the best rate",
        "limits: p99 ttft < 100 ms",
        "under-batched: requests wait although the cache has room: a batch holds at most 4 of them",
        "load curve, untouched",
        "load curve, max-num-seqs=16",
        "fast-math: unsafe: its answers agree",
        "note: a note",
        "to start the tuned server: sh out/launch.sh",
    ):
        assert words in text


def test_the_page_has_both_curves_and_shows_no_markup_of_the_job() -> None:
    hostile = ServerChange(name="<script>x", knob="k", safety="exact")
    changed = msgspec.structs.replace(tuning(), adopted=(hostile,), notes=("<b>",))
    page = serving_html(changed, ["flatout"], FOLDER)
    assert page.count("<h3>untouched (grey)</h3>") == 1
    assert page.count('<path class="tuned"') == 2
    assert "<script" not in page
    assert "<b>" not in page


def test_the_emitted_files_start_the_tuned_server(tmp_path: Path) -> None:
    files = {each.path: each.text for each in emit_serving(tuning())}
    assert sorted(files) == ["kserve.yaml", "kubernetes.yaml", "launch.sh"]
    script = tmp_path / "launch.sh"
    script.write_text(files["launch.sh"].replace("exec fake_server.py", "exec echo"))
    printed = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True).stdout
    assert printed == "--max-num-seqs 16 --port 8000\n"
    deployment = yaml.safe_load(files["kubernetes.yaml"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert (container["command"], container["args"]) == (
        ["fake_server.py"],
        ["--max-num-seqs", "16", "--port", "8000"],
    )
    assert container["ports"] == [{"containerPort": 8000}]
    service = yaml.safe_load(files["kserve.yaml"])
    assert service["spec"]["predictor"]["containers"][0]["args"] == container["args"]


def test_secrets_of_the_command_are_masked_everywhere() -> None:
    assert "set HF_TOKEN: its value looks like a secret and is not written" in emit_serving(tuning())[0].notes
    texts = [each.text for each in emit_serving(tuning())]
    texts += [serving_text(tuning(), FOLDER, style=TextStyle()), msgspec.json.encode(tuning()).decode()]
    assert not any("abcdefghijklmnop" in text for text in texts)


def point(rate: float, good: int, tokens: int = 100, took_s: float = 10.0, energy_j: float | None = None) -> LoadPoint:
    return LoadPoint(
        rate_per_s=rate,
        num_requests=10,
        num_completed=10,
        num_failed=0,
        num_cut=0,
        num_timed_out=0,
        num_good=good,
        num_tokens=tokens,
        took_s=took_s,
        goodput_per_s=good / took_s,
        tokens_per_s=tokens / took_s,
        energy_j=energy_j,
    )


def trial(*points: LoadPoint) -> ServerTrial:
    return ServerTrial(index=0, arm="baseline", outcome="completed", points=points)


def test_the_cost_of_a_trial_is_that_of_its_best_rate() -> None:
    both = trial(point(2.0, 10, energy_j=300.0), point(8.0, 4, tokens=200, energy_j=100.0, took_s=2.0))
    assert cost(both, "goodput") == pytest.approx(1 / 2.0)
    assert cost(both, "tokens/s") == pytest.approx(1 / 100)
    assert cost(both, "energy") == pytest.approx(400 / 300)
    assert cost(trial(point(2.0, 0)), "goodput") == pytest.approx(1 / 0.05)
    assert cost(trial(point(2.0, 5)), "energy") is None
    assert as_result(trial(point(2.0, 5)), "energy").outcome == "failed"


def test_a_curve_has_the_interval_of_the_mean_over_trials() -> None:
    (only,) = load_curve([trial(point(10.0, good, took_s=1.0)) for good in (4, 5, 6)], "baseline").points
    assert only.goodput_per_s == pytest.approx(5.0)
    assert only.goodput_interval is not None
    half = 4.302653 * 1.0 / 3**0.5  # Student's t with two degrees of freedom
    assert only.goodput_interval == pytest.approx((5 - half, 5 + half), rel=1e-5)
    (single,) = load_curve([trial(point(10.0, 4))], "baseline").points
    assert single.goodput_interval is None
