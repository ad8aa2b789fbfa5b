"""`flatout cost` as a user types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.run.test_adapt_power import LimitedGpus

from flatout.cli import main

JOBS = """\
JobID|State|AllocTRES|ElapsedRaw|Account|WCKey|Start|End
1|COMPLETED|billing=8,gres/gpu=8,gres/gpu:h100=8|7200|vision|detect|2026-01-01T00:00:00|2026-01-01T02:00:00
1.batch|COMPLETED|gres/gpu=8|7200|vision||2026-01-01T00:00:00|2026-01-01T02:00:00
2|PREEMPTED|billing=8,gres/gpu=4,gres/gpu:h100=4|3600|language||2026-01-01T00:00:00|2026-01-01T01:00:00
2|COMPLETED|billing=8,gres/gpu=4,gres/gpu:h100=4|36000|language||2026-01-01T03:00:00|2026-01-01T13:00:00
nonsense
3|RUNNING|billing=8,gres/gpu=1,gres/gpu:h100=1|3600|vision|segment|2026-01-02T00:00:00|Unknown
"""
CURVE = """\
model,power_limit,time_per_epoch,average_power
a,300,100,290
a,200,105,195
b,300,100,295
b,200,104,190
"""


def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["flatout", "cost", *arguments])
    ended = main()
    out, err = capfd.readouterr()
    assert ended == code, err
    return out, err


def run_json(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return json.loads(run(monkeypatch, capfd, *arguments, "--json")[0])  # type: ignore[no-any-return]


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.txt"
    path.write_text(JOBS)
    return str(path)


def test_one_json_object_with_lines_that_sum(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = run_json(monkeypatch, capfd, "jobs", jobs, "--region", "FR")
    assert (said["schema"], said["version"]) == ("flatout/cost", 1)
    assert [(team["team"], team["project"], team["total"]["gpu_hours"]) for team in said["teams"]] == [
        ("language", None, 44.0),
        ("vision", "detect", 16.0),
        ("vision", "segment", 1.0),
    ]
    total = said["total"]
    assert total["idle_held"] is None
    assert total["lost"]["gpu_hours"] == 4
    assert total["unsplit"]["gpu_hours"] + total["lost"]["gpu_hours"] == total["total"]["gpu_hours"] == 61
    assert total["total"]["usd"] == {
        "value": pytest.approx(61 * 2.95),
        "low": pytest.approx(61 * 1.99),
        "high": pytest.approx(61 * 5.0),
        "provenance": "vendor",
        "reason": "",
    }
    assert total["total"]["kg_co2"]["value"] == pytest.approx(total["total"]["kwh"]["value"] * 0.031)
    assert said["left_out"] == [{"line": 6, "reason": "the row is truncated, or is not a row"}]
    assert (said["num_rows"], said["num_steps"]) == (6, 1)


def test_as_text_it_says_what_is_not_known_and_what_to_type_next(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said, _ = run(monkeypatch, capfd, "jobs", jobs)
    assert "61.0 GPU-hours in 4 attempts" in said
    assert "of it idle-held    unknown" in said
    assert "lost GPU-hours by cause: preempted 4.00" in said
    assert "kg CO2 unknown: the grid is unknown (pass --region)" in said
    assert "1 of 6 rows were skipped" in said
    assert "line 6: the row is truncated" in said
    assert said.splitlines()[-1] == f"next: flatout cost jobs {jobs} --usage usage.csv"
    assert [line for line in said.splitlines()[:-1] if len(line) > 80] == []


def test_measured_use_is_taken_from_a_file(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usage = tmp_path / "usage.csv"
    usage.write_text("job,busy_share,power_w\n1,0.5,400\n2,1,\n3,0,\n")
    total = run_json(monkeypatch, capfd, "jobs", jobs, "--usage", str(usage))["total"]
    assert total["used"]["gpu_hours"] == 8 + 40
    assert total["idle_held"]["gpu_hours"] == 8 + 1
    said, _ = run(monkeypatch, capfd, "jobs", jobs, "--usage", str(usage))
    assert "idle-held" in said and "unknown" not in said.split("USD:")[0].replace("kg CO2", "").split("lost GPU")[1]


def test_standard_input_and_own_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[[price]]\ngpu = "h100"\nterms = "reserved"\ntypical = 1.0\n')
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(JOBS.encode())))
    said = run_json(monkeypatch, capfd, "jobs", "-", "--prices", str(prices), "--terms", "reserved")
    assert said["total"]["total"]["usd"]["value"] == 61
    assert said["sources"] == ["standard input"]


@pytest.mark.parametrize(
    ("budgets", "code"),
    [
        (["vision=1000"], 0),
        (["vision=50"], 1),  # 17 GPU-hours at 2.95
        (["vision=60"], 0),  # may be over: at 5.00 it is
        (["audio=1"], 0),
    ],
)
def test_a_budget_that_is_over_ends_with_1_where_asked(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], budgets: list[str], code: int
) -> None:
    options = [word for text in budgets for word in ("--budget", text)]
    run(monkeypatch, capfd, "jobs", jobs, *options)
    said, _ = run(monkeypatch, capfd, "jobs", jobs, *options, "--fail-on-budget", code=code)
    assert "budget of" in said


def test_a_budget_that_cannot_be_judged_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("JobID|State|AllocTRES|ElapsedRaw|Account\n1|COMPLETED|gres/gpu=8|7200|vision\n")
    said, _ = run(monkeypatch, capfd, "jobs", str(path), "--budget", "vision=5", "--fail-on-budget", code=1)
    assert "budget of vision: unknown" in said
    assert "the price of GPUs whose type Slurm does not report is unknown" in " ".join(said.split())


HEADER = "JobID|State|AllocTRES|ElapsedRaw|Account|Start|End\n"
ONE = "1|COMPLETED|gres/gpu:h100=8|7200|vision|2026-01-01T00:00:00|2026-01-01T02:00:00\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER, "no job was read"),
        (HEADER + "nonsense\nmore\n", "no job was read"),
        (HEADER + ONE.replace("1|COMPLETED", "1.batch|COMPLETED"), "no job was read"),
        (HEADER + ONE.replace("7200", "two hours"), "no job was read"),
        (HEADER + ONE.replace("vision", ""), "the accounting names no team"),
        (HEADER.replace("|Account", "") + ONE.replace("|vision", ""), "the accounting names no team"),
        (HEADER + ONE.replace("gres/gpu:h100=8", "cpu=8"), "no attempt held a GPU that was counted"),
        (HEADER + ONE.replace("gres/gpu:h100=8", "cpu=8,gres/shard=4"), "no attempt held a GPU that was counted"),
    ],
)
def test_a_budget_is_not_met_by_jobs_that_were_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    options = ["jobs", str(path), "--gpu-price", "2", "--budget", "vision=1000"]
    said, _ = run(monkeypatch, capfd, *options, "--fail-on-budget", code=1)
    assert f"budget of vision: unknown, unknown of 1,000 USD: {why}" in " ".join(said.split())
    (state,) = run_json(monkeypatch, capfd, *options)["budgets"]
    assert (state["status"], state["spent_usd"]["value"]) == ("unknown", None)
    path.write_text(HEADER + ONE)
    run(monkeypatch, capfd, *options, "--fail-on-budget", code=0)


@pytest.mark.parametrize("times", ["{start}Z|{end}Z", "{start}+01:00|{end}+0100", "1767225600|1767232800"])
def test_times_with_a_time_zone_are_read_and_not_mixed_with_others_in_a_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], times: str
) -> None:
    start, end = "2026-01-01T00:00:00", "2026-01-01T02:00:00"
    zoned = ONE.replace(f"{start}|{end}", times.format(start=start, end=end)).replace("1|", "2|", 1)
    path = tmp_path / "jobs.txt"
    options = ["jobs", str(path), "--gpu-price", "2", "--budget", "vision=100000", "--fail-on-budget"]
    path.write_text(HEADER + zoned)
    result = run_json(monkeypatch, capfd, *options, "--budget-period", "30d")
    assert (result["num_rows"], result["left_out"]) == (1, [])
    assert result["to_s"] - result["from_s"] == 7200
    assert result["from_s"] == 1767225600 - ("+01" in times) * 3600  # 2026-01-01, UTC
    path.write_text(HEADER + ONE + zoned)
    said, _ = run(monkeypatch, capfd, *options)
    assert "note: times with and without a time zone are mixed" in " ".join(said.split())
    said, _ = run(monkeypatch, capfd, *options, "--budget-period", "30d", code=1)
    assert "so the share of the period is unknown" in " ".join(said.split())


def test_a_checkpoint_saves_what_came_before_it(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = run_json(monkeypatch, capfd, "jobs", jobs, "--checkpoint-interval", "25m")
    assert said["total"]["lost"]["gpu_hours"] == pytest.approx(4 * 10 / 60)


def test_power_caps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(CURVE)
    said = run_json(monkeypatch, capfd, "power-cap", str(path), "--gpu-price", "2", "--electricity", "0.1")
    assert (said["schema"], said["knee_w"], said["cheapest_w"], said["pays"]) == ("flatout/power-cap", 200, 300, False)
    assert said["usd_per_kwh"] == 0.1
    text, _ = run(monkeypatch, capfd, "power-cap", str(path), "--gpu-type", "h100")
    assert "no cap pays" in " ".join(text.split())
    assert text.splitlines()[-1].startswith("next: nvidia-smi --power-limit 200")
    text, _ = run(monkeypatch, capfd, "power-cap", str(path))
    assert "The price per GPU-hour is unknown" in " ".join(text.split())


def test_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": ([1] * 30 + [0] * 6) * 20}))
    options = ["spot", str(path), "--work-hours", "10", "--deadline", "20h", "--gpu-type", "h100"]
    said = run_json(monkeypatch, capfd, *options)
    assert (said["schema"], said["advice"]) == ("flatout/spot", "spot")
    assert said["is_interval_youngs"] is True
    assert said["checkpoint_interval_s"] == pytest.approx((2 * 30 * 30 * 600 * 20 / 20) ** 0.5)
    assert [one["strategy"] for one in said["outcomes"]] == ["spot", "on-demand", "mix"]
    text, _ = run(monkeypatch, capfd, *options, "--instances", "1", "--gpus-per-instance", "8")
    assert "advice: spot: " in text
    assert "10 against 23.6 USD per instance-hour" in " ".join(text.split())
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["jobs", "missing.txt"], "cannot be read"),
        (["power-cap"], "missing argument 'CURVE.csv|COMMAND...'"),
        (["spot", "a", "b", "--work-hours=1", "--deadline=2h"], "unexpected extra argument"),
        (["spot", "a"], "missing option '--work-hours'"),
        (["spot", "a", "--work-hours=1"], "missing option '--deadline'"),
        (["spot", "a", "--work-hours=0", "--deadline=2h"], "`--work-hours` must be a number above 0"),
        (["jobs", "{jobs}", "--region", "us-est-1"], "there is no grid named"),
        (["jobs", "{jobs}", "--terms", "gift"], "`--terms` must be one of"),
        (["jobs", "{jobs}", "--gpu-type", "h1000"], "`--gpu-type` must be a GPU in the catalogue"),
        (
            ["jobs", "{jobs}", "--gpu-price", "-1"],
            "`--gpu-price` must be a number from 0 to 1,000, but is `-1`",
        ),
        (["jobs", "{jobs}", "--gpu-price", "1e308"], "but is `1e308`"),
        (["jobs", "{jobs}", "--gpu-price", "1000.01"], "must be a number from 0 to 1,000"),
        (["jobs", "{jobs}", "--electricity", "10.01"], "`--electricity` must be a number from 0 to 10"),
        (["jobs", "{jobs}", "--budget", "vision=20000EUR"], "`--budget` must be TEAM=USD"),
        (["jobs", "{jobs}", "--fail-on-budget"], "`--fail-on-budget` needs a --budget to check"),
        (["spot", "a", "--work-hours=1", "--deadline=2h", "--terms=spot"], "no such option: --terms"),
        (["spot", "a", "--work-hours=1", "--deadline=2h", "--electricity=1"], "no such option: --electricity"),
        (["buy", "missing.toml"], "cannot be read"),
        (["jobs", "{jobs}", "--electricity", "nan"], "`--electricity` must be a number from 0"),
        (["jobs", "{jobs}", "--budget", "vision"], "`--budget` must be TEAM=USD"),
        (["jobs", "{jobs}", "--budget", "v=1", "--budget", "v=2"], "`--budget` must be TEAM=USD, once per team"),
        (["jobs", "{jobs}", "--usage", "{jobs}"], "must have the column job"),
        (["jobs", "{jobs}", "--checkpoint-interval", "0m"], "`--checkpoint-interval` must be a duration above 0s"),
        (["jobs", "{jobs}", "--project", "node"], "a project must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    jobs: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    out, err = run(monkeypatch, capfd, *(word.format(jobs=jobs) for word in arguments), code=2)
    assert out == ""
    assert err.startswith("error: ") and message in err.splitlines()[0]
    assert len(err.splitlines()) <= 2


def test_the_next_command_is_the_same_with_what_is_missing(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["--gpu-price", "2.5", "--region", "FR", "--budget", "vision=20"]
    said, _ = run(monkeypatch, capfd, "jobs", jobs, *asked)
    assert said.splitlines()[-1] == f"next: flatout cost jobs {jobs} {' '.join(asked)} --usage usage.csv"
    usage = tmp_path / "usage.csv"
    usage.write_text("job,busy_share\nanother,0.5\n")  # of none of these jobs: what is unknown stays so
    said, _ = run(monkeypatch, capfd, "jobs", jobs, *asked, f"--usage={usage}")
    assert said.splitlines()[-1] == f"next: flatout cost jobs {jobs} {' '.join(asked)} --usage={usage} --json"


def test_where_spot_was_never_lost_no_interval_is_called_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    options = ["spot", str(path), "--work-hours", "10", "--deadline", "20h", "--gpu-type", "h100"]
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1] * 720}))
    text, _ = run(monkeypatch, capfd, *options)
    assert "a checkpoint every 600.0 min (only at the end, because spot was never lost)" in " ".join(text.split())
    text, _ = run(monkeypatch, capfd, *options, "--checkpoint-interval", "30m")
    assert "a checkpoint every 30.0 min (as given)" in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["jobs.txt"], "flatout cost jobs jobs.txt"),
        (["--gpu-type", "h100", "my jobs.txt"], "flatout cost jobs --gpu-type h100 'my jobs.txt'"),
        (["spots", "trace.json"], "flatout cost jobs spots trace.json"),
    ],
)
def test_a_file_without_a_command_is_refused_with_the_command_to_type(
    arguments: list[str], hint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = run(monkeypatch, capfd, *arguments, code=2)
    assert err.splitlines() == [
        f"error: `flatout cost` needs one of jobs, buy, power-cap, spot, carbon, but got `{arguments[0]}`",
        f"hint: to charge jobs: {hint}",
    ]


def test_a_file_that_is_called_as_a_command_is_not_taken_for_jobs(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(jobs).rename(tmp_path / "spot")
    _, err = run(monkeypatch, capfd, "spot", "us.json", "--work-hours=1", "--deadline=2h", "--gpu-type=h100", code=2)
    assert err.startswith("error: `us.json` cannot be read")
    assert run_json(monkeypatch, capfd, "jobs", "spot")["sources"] == ["spot"]


def test_a_sweep_says_what_it_would_set_and_measures_with_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gpus = LimitedGpus()
    monkeypatch.setattr("flatout.probe.power_limits._of_this_host", lambda: (gpus, [0, 1]))
    monkeypatch.chdir(tmp_path)
    words = ["power-cap", "--sweep", "--limits", "700,350"]
    text, _ = run(monkeypatch, capfd, *words, "--", "true", "a b")
    assert "would set 2 GPUs to 700, 350 W, run the command twice at each, and put the limits back" in text
    assert text.splitlines()[-1] == "next: flatout cost power-cap --sweep --limits 700,350 --apply -- true 'a b'"
    assert gpus.sets == [] and not (tmp_path / "power-curve.csv").exists()
    energy = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(gpus, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: next(energy))
    said = json.loads(run(monkeypatch, capfd, *words, "--apply", "--json", "--", "true")[0])
    assert (said["schema"], said["no_cap_w"], len(said["points"])) == ("flatout/power-cap", 700, 2)
    assert len(gpus.sets) == 10 and gpus.limits_mw == [700_000, 700_000], "four runs on two GPUs, and back"
    assert (tmp_path / "power-curve.csv").read_text().count("\n") == 5
    for bad, problem in (
        (["curve.csv", "b"], "takes one measured curve"),
        (["--sweep", "--limits", "a", "b"], "watts"),
    ):
        _, error = run(monkeypatch, capfd, "power-cap", *bad, code=2)
        assert problem in error


def test_carbon_says_when_to_start(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parents[1] / "data" / "readers" / "hours.csv")
    said = run_json(monkeypatch, capfd, "carbon", path, "--takes", "6h", "--now", "20", "--power", "11000")
    # From 20:00: 420, 410, 400, 390, 380, 360. From 01:00: 360, 340, 330, 330, 340, 370.
    assert said["now"]["g_per_kwh"] == pytest.approx(2360 / 6)
    assert (said["best"]["hour"], said["best"]["delay_h"]) == ("01:00", 5)
    assert said["best"]["less"] == pytest.approx(1 - 2070 / 2360)
    assert said["best"]["kg_co2"] == pytest.approx(11 * 6 * 345 / 1000)
    text, _ = run(monkeypatch, capfd, "carbon", path, "--takes", "6h", "--now", "20")
    assert text.splitlines()[0] == "start at 01:00: 12 % less, 5 h later"
    assert text.splitlines()[-1].startswith("next: flatout submit --sbatch-options=--begin=now+5hours --dry-run")
    text, _ = run(monkeypatch, capfd, "carbon", path, "--takes", "6h", "--now", "1")
    assert text.splitlines()[0] == "start now: no start within 23 h emits 1 % less"
    _, error = run(monkeypatch, capfd, "carbon", path, code=2)
    assert "--takes" in error
