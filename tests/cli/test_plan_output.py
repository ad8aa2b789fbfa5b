"""`flatout plan` with --html, --emit and --goal, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_plan import PLAN, run

from flatout.catalog.targets import target_named
from flatout.emit.plan_targets import PLAN_TARGETS


def test_a_page_is_written_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.html"
    assert run(monkeypatch, *PLAN, "--html", str(path)) == 0
    said = capfd.readouterr()
    assert "Why similar layouts lost" in said.out
    assert str(path) in said.err
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert "--for</span> <span>" in page and "--emit</span> <span>" in page
    assert run(monkeypatch, *PLAN, "--html", str(path)) == 2
    assert "already exists" in capfd.readouterr().err
    assert run(monkeypatch, *PLAN, "--html", str(path), "--force") == 0


def test_the_next_command_keeps_what_was_asked_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [
        *PLAN,
        "--fix",
        "tp=2",
        f"--html={tmp_path / 'a.html'}",
        "--emit",
        "nemo",
        "--out",
        str(tmp_path),
        "--force",
    ]
    assert run(monkeypatch, *given) == 0
    last = capfd.readouterr().out.rstrip().splitlines()[-1]
    assert last == f"next: flatout {' '.join(PLAN)} --fix tp=2 --calibrate RUNS.csv"


@pytest.mark.parametrize("target", [*PLAN_TARGETS, "any"])
def test_the_next_command_writes_the_settings_of_the_best_layout(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--for", target, "--top", "1") == 0
    last = capfd.readouterr().out.rstrip().splitlines()[-1]
    assert run(monkeypatch, *PLAN, "--for", target, "--top", "1", "--json") == 0
    best = json.loads(capfd.readouterr().out)["layouts"][0]
    named = target if target != "any" else best["runs_on"][0]
    assert last == f"next: flatout {' '.join(PLAN)} --top 1 --for {named} --emit {named}"
    assert run(monkeypatch, *last.removeprefix("next: flatout ").split(), "--out", str(tmp_path)) == 0
    said = capfd.readouterr()
    assert "fastest layout that" not in said.err, "the settings are those of the layout that was shown"
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("target", PLAN_TARGETS)
def test_a_plan_for_a_framework_has_only_layouts_that_it_can_run(
    target: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def planned(*options: str) -> dict[str, Any]:
        assert run(monkeypatch, *PLAN, *options, "--json", "--top", "50") == 0
        return dict(json.loads(capfd.readouterr().out))

    def num_considered(plan: dict[str, Any]) -> int:
        return int(plan["num_layouts"] + sum(each["num_layouts"] for each in plan["excluded"]))

    said = planned("--for", target)
    assert said["target"] == target
    for kind in ("layouts", "neighbours", "pareto"):
        assert all(target in each["runs_on"] for each in said[kind]), kind
    # The times are those of this framework, so they are compared with the same framework's where TP is fixed.
    best_s = said["layouts"][0]["step_time_s"]
    assert all(planned("--for", target, "--fix", f"tp={tp}")["layouts"][0]["step_time_s"] >= best_s for tp in (1, 2, 4))
    assert num_considered(planned("--for", target, "--risk", "50%")) == num_considered(said)


def test_any_marks_who_can_run_each_layout(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, *PLAN, "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["target"] == "any" and all(each["runs_on"] for each in said["layouts"])
    assert run(monkeypatch, *PLAN) == 0
    text = capfd.readouterr().out
    assert "runs on" in text and "M megatron" in text
    assert "layouts that no framework can run." in " ".join(text.split())
    assert [line for line in text.splitlines()[:-1] if len(line) > 80] == []


def test_a_schedule_that_nobody_has_is_planned_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fixed = ("--fix", "schedule=zero-bubble")
    assert run(monkeypatch, *PLAN, *fixed) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "No framework is known to run these layouts: Megatron-LM has no zero-bubble schedule" in said
    assert said.endswith("--fix schedule=zero-bubble --calibrate RUNS.csv")
    assert run(monkeypatch, *PLAN, *fixed, "--for", "nemo") == 2
    error = capfd.readouterr().err
    assert "NeMo can run no layout of `llama3-8b` with schedule=zero-bubble on 16 GPUs: it has no zero-bubble" in error
    assert "hint: remove --fix schedule=zero-bubble, or pass another --for: megatron, torchtitan" in error


def test_every_target_is_written_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [*PLAN, "--emit", ",".join(PLAN_TARGETS), "--out", str(tmp_path)]
    assert run(monkeypatch, *given, "--json") == 0
    said = capfd.readouterr()
    plan = json.loads(said.out)
    assert plan["schema"] == "flatout/plan", "data alone on stdout"
    for target in PLAN_TARGETS:  # each gets a layout of its own if it cannot run the best one
        has_own = f"{target}: " in said.err and f"fastest layout that {target_named(target).title} can run" in said.err
        assert has_own or target in plan["layouts"][0]["runs_on"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("megatron_plan.sh", "torchtitan_plan.sh", "deepspeed_plan.json", "deepspeed_plan.sh", "fsdp2_plan.py"),
        "nemo_plan.py",
    }
    (tmp_path / "nemo_plan.py").write_text("mine")
    assert run(monkeypatch, *PLAN, "--emit", "nemo", "--out", str(tmp_path)) == 2
    assert (tmp_path / "nemo_plan.py").read_text() == "mine"
    assert run(monkeypatch, *PLAN, "--emit", "nemo", "--out", str(tmp_path), "--force") == 0
    assert (tmp_path / "nemo_plan.py").read_text() != "mine"


def test_a_goal_is_answered_with_every_quantity(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [*PLAN, "--goal", "1B tokens in 3 days", "--gpu-price", "2.5", "--region", "FR"]
    assert run(monkeypatch, *given, "--json") == 0
    goal = json.loads(capfd.readouterr().out)["goal"]
    assert goal["is_reached"] and goal["num_gpus"] <= 16
    assert goal["days"]["value"] <= 3
    for name in ("days", "gpu_hours", "usd", "energy_mwh", "carbon_t", "interruptions", "effective_share"):
        one = goal[name]
        assert one["low"] <= one["value"] <= one["high"], name
        assert one["source"], name
    assert goal["gpu_hours"]["value"] == pytest.approx(goal["num_gpus"] * 24 * goal["days"]["value"])
    assert goal["usd"]["value"] == pytest.approx(2.5 * goal["gpu_hours"]["value"])
    # 700 W GPUs: between a third of that and three times it with host and data centre.
    kwh_per_gpu_hour = goal["energy_mwh"]["value"] * 1000 / goal["gpu_hours"]["value"]
    assert 0.25 < kwh_per_gpu_hour < 2.1
    fewer = [one for one in goal["options"] if one["num_gpus"] < goal["num_gpus"]]
    assert not any(one["is_reached"] for one in fewer), "the fewest GPUs that do it"


def test_a_goal_out_of_reach_says_the_nearest_that_works(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--goal", "60B tokens in 2 days", "--json") == 0
    goal = json.loads(capfd.readouterr().out)["goal"]
    assert not goal["is_reached"]
    reached = [one["num_gpus"] for one in goal["options"] if one["is_reached"]]
    assert reached and min(reached) > 16
    assert f"{min(reached)} GPUs reach it in" in goal["nearest"]
    assert "16 GPUs take" in goal["nearest"]
    assert run(monkeypatch, *PLAN, "--goal", "20B tokens for $1") == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "cannot be reached with" in said and "no number of GPUs that was tried costs less than $1" in said


def test_a_goal_without_a_limit_is_how_long_the_cluster_takes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--goal", "1B tokens", "--json") == 0
    goal = json.loads(capfd.readouterr().out)["goal"]
    assert not goal["is_reached"] or goal["num_gpus"] == 16
    assert goal["num_gpus"] == 16 and goal["nearest"] == ""


def test_every_number_of_gpus_is_tried_and_the_cheapest_fewest_and_fastest_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On 512 GPUs, 432 reach this goal; powers of two and halfway between would leave 512."""
    large = ["plan", "--model", "llama3-70b", "--cluster", "h100x512", "--global-batch", "1024", "--seq", "8192"]
    assert run(monkeypatch, *large, "--goal", "1T tokens in 30 days", "--json") == 0
    goal = json.loads(capfd.readouterr().out)["goal"]
    options = {each["num_gpus"]: each for each in goal["options"]}
    assert goal["num_gpus"] == 432 and goal["is_reached"]
    assert not any(each["is_reached"] for number, each in options.items() if number < 432)
    reached = {number: each for number, each in options.items() if each["is_reached"] and number <= 512}
    assert goal["fastest"] == min(reached, key=lambda number: reached[number]["days"]["value"])
    assert goal["cheapest"] == min(reached, key=lambda number: reached[number]["usd"]["value"])
    for each in options.values():
        is_sure, is_hopeless = each["days"]["high"] < 30, each["days"]["low"] > 30
        assert 0 <= each["probability"] <= 1
        assert not is_sure or each["probability"] > 0.95
        assert not is_hopeless or each["probability"] < 0.05
    likely = [number for number in reached if reached[number]["probability"] >= 0.9]
    assert goal["fewest_likely"] == min(likely, default=None)


def test_a_cluster_that_divides_badly_is_used_in_part(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [word if word != "h100x16" else "h100x104" for word in PLAN]
    assert run(monkeypatch, *words) == 2
    assert "the nearest number of GPUs that works is" in capfd.readouterr().err
    assert run(monkeypatch, *words, "--goal", "1B tokens in 3 days", "--json") == 0
    said = capfd.readouterr()
    assert "divides 104 GPUs: the plan uses 96 of them" in said.err
    assert json.loads(said.out)["goal"]["num_gpus"] <= 96


@pytest.mark.parametrize(
    ("goal", "sentence"),
    [
        ("1B tokens in 3 days", "finish within 3 days: "),
        ("1B tokens for $5000", "finish for at most $5,000: "),
        ("1B tokens in 3 days for $5000", "finish within 3 days for at most $5,000: "),
    ],
)
def test_a_goal_is_answered_in_one_sentence(
    goal: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--goal", goal) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert f"are the fewest that {sentence}" in said
    assert "are expected, and the probability of reaching the goal is" in said
    assert "fewest" in said.partition("Other numbers of GPUs")[2], "marked in the table"


def test_a_goal_as_text_fits_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, *PLAN, "--goal", "1B tokens in 3 days") == 0
    said = capfd.readouterr().out
    assert "The goal" in said and "interruptions" in said and "per 1,000" in " ".join(said.split())
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN, "--goal", "soon"), "a goal is an amount of tokens or steps"),
        ((*PLAN, "--region", "FR"), "--region is for --goal"),
        ((*PLAN, "--goal", "1B tokens", "--region", "Atlantis"), "there is no grid named"),
        ((*PLAN, "--goal", "1B tokens", "--terms", "gratis"), "--terms must be one of"),
        ((*PLAN, "--goal", "1B tokens", "--prices", "missing.toml"), "cannot be read"),
        ((*PLAN, "--emit", "jax"), "--emit must be one of megatron, torchtitan, deepspeed, fsdp2, nemo"),
        ((*PLAN, "--html", "."), "is a folder"),
        (
            (*PLAN, "--for", "jax"),
            "`--for` must be one of megatron, torchtitan, deepspeed, fsdp2, nemo or any, but is `jax`",
        ),
        ((*PLAN, "--precision", "fp16", "--for", "torchtitan"), "torchtitan can run no layout"),
        ((*PLAN, "--fix", "pp=2", "--emit", "fsdp2"), "FSDP2 can run no layout of `llama3-8b` with pp=2"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capfd.readouterr()
    assert message in said.err
    assert said.out == ""
    assert len(said.err.strip().splitlines()) <= 2
