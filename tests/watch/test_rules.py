"""Each alert fires, stays quiet and resolves, as Prometheus' own tool evaluates them; both spellings of DCGM's host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.watch.emit.alertmanager import alertmanager_text
from flatout.watch.emit.alerts import ALERTS
from flatout.watch.emit.scrape_config import scrape_config_text
from flatout.watch.emit.targets import rules_text

JOB = 'job="train", job_id="7"'
RANK = f'{JOB}, host="n1", rank="0"'
OLD, NEW = 'Hostname="n1", gpu="0", UUID="GPU-1"', 'hostname="n1", gpu="0", UUID="GPU-1"'
# In intervals: healthy, then faulty, then healthy again.
HEALTHY, FAULTY = 24, 32
END = 2 * HEALTHY + FAULTY
OF_JOB, OF_GPU = {"job": "train", "job_id": "7"}, {"host": "n1", "gpu": "0", "UUID": "GPU-1"}
OF_RANK = {**OF_JOB, "host": "n1", "rank": "0"}
OF_PORT = {"job": "train", "host": "n1", "device": "mlx5_0", "port": "1"}


def levels(good: float, bad: float) -> str:
    """Return a gauge that is `bad` in the middle."""
    return f"{good}x{HEALTHY - 1} {bad}x{FAULTY - 1} {good}x{HEALTHY}"


def steady(value: float) -> str:
    return f"{value}x{END}"


def counts(good: float, bad: float) -> str:
    """Return a counter that grows by `good` per interval, and by `bad` in the middle."""
    first, second = good * (HEALTHY - 1), good * (HEALTHY - 1) + bad * FAULTY
    return f"0+{good}x{HEALTHY - 1} {first + bad}+{bad}x{FAULTY - 1} {second + good}+{good}x{HEALTHY - 1}"


# Alert -> its series (the healthy value is just within the threshold, the faulty one just beyond), and its labels.
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "FlatoutExporterDown": (
        {'up{job="flatout", instance="n1:9464"}': levels(1, 0)},
        {"job": "flatout", "instance": "n1:9464"},
    ),
    "FlatoutJobStalled": (
        {
            f"flatout_last_step_age_seconds{{{RANK}}}": levels(399, 401),
            f"flatout_step_block_median_seconds{{{RANK}}}": steady(20),
        },
        OF_JOB,
    ),
    "FlatoutRankLost": (
        {
            f"flatout_rank_up{{{RANK}}}": steady(1),
            f'flatout_rank_up{{{JOB}, host="n2", rank="1"}}': levels(1, 0),
            f'flatout_world_size{{{JOB}, host="n1"}}': steady(2),
            f'flatout_world_size{{{JOB}, host="n2"}}': steady(2),
        },
        OF_JOB,
    ),
    "FlatoutStepSlowerThanTuned": (
        {
            f"flatout_step_block_median_seconds{{{RANK}}}": levels(1.09, 1.11),
            f'flatout_step_seconds_promised{{{JOB}, host="n1"}}': steady(1),
        },
        OF_JOB,
    ),
    "FlatoutStepTimeRose": ({f"flatout_step_block_median_seconds{{{RANK}}}": levels(1.0, 1.16)}, OF_JOB),
    "FlatoutRankLate": (
        {
            f"flatout_rank_lateness_seconds{{{RANK}}}": levels(0.09, 0.11),
            f"flatout_step_block_median_seconds{{{RANK}}}": steady(1),
        },
        OF_RANK,
    ),
    "FlatoutDataWait": ({f"flatout_data_wait_ratio{{{RANK}}}": levels(0.19, 0.21)}, OF_JOB),
    "FlatoutLowGoodput": (
        {
            f'flatout_device_seconds_total{{{JOB}, host="n1", class="productive"}}': counts(51, 40),
            f'flatout_device_seconds_total{{{JOB}, host="n1", class="hang"}}': counts(49, 60),
        },
        OF_JOB,
    ),
    "FlatoutHostMemoryGrows": ({f"flatout_rank_resident_bytes{{{RANK}}}": counts(7.5e7, 9e7)}, OF_RANK),
    "FlatoutMachineXid": (
        {
            f'flatout_xid_errors_total{{{JOB}, class="machine", gpu="0", host="n1"}}': counts(0, 1),
            f'flatout_xid_errors_total{{{JOB}, class="job", gpu="0", host="n1"}}': counts(1000, 1000),  # a storm of 45
        },
        {**OF_JOB, "class": "machine", "gpu": "0", "host": "n1"},
    ),
    "FlatoutRowRemapFailed": ({f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{OLD}}}": levels(0, 1)}, OF_GPU),
    "FlatoutUncorrectableEcc": ({f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{NEW}}}": counts(0, 1)}, OF_GPU),
    "FlatoutRowsRemapped": (
        {f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{OLD}}}": counts(0, 0.125)},
        OF_GPU,
    ),
    "FlatoutCorrectedErrors": (
        {
            f"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{OLD}}}": counts(8, 9),
            f"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{{{OLD}}}": steady(2),
        },
        OF_GPU,
    ),
    "FlatoutGpuHot": ({f"DCGM_FI_DEV_THERMAL_VIOLATION{{{NEW}}}": counts(0.049 * 6e10, 0.051 * 6e10)}, OF_GPU),
    "FlatoutPcieReplays": ({f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{OLD}}}": counts(0.9, 1.2)}, OF_GPU),
    "FlatoutLinkErrors": (
        {'flatout_port_symbol_errors_total{job="train", host="n1", device="mlx5_0", port="1"}': counts(0.9, 1.2)},
        OF_PORT,
    ),
}
# Those that look back over an hour or a day are tested in intervals of 5 minutes, and the others in intervals of one.
SLOW = {"FlatoutCorrectedErrors", "FlatoutLowGoodput", "FlatoutHostMemoryGrows", "FlatoutRowsRemapped"}
LOOKS_BACK = {"FlatoutRowsRemapped": 24 * 60 // 5, "FlatoutUncorrectableEcc": 60}  # intervals that it takes to resolve


def expected(alert: str, labels: dict[str, str]) -> dict[str, Any]:
    severity = next(each.severity for each in ALERTS if each.name == alert)
    return {"exp_labels": {**labels, "severity": severity}}


def case(alert: str, minutes: int) -> dict[str, Any]:
    """Return promtool's test of an alert, in intervals of so many minutes."""
    series, labels = CASES[alert]
    resolved = END + LOOKS_BACK.get(alert, 0) - 1
    times = ((HEALTHY - 1, []), (HEALTHY + FAULTY - 1, [expected(alert, labels)]), (resolved, []))
    return {
        "interval": f"{minutes}m",
        "name": alert,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{count * minutes}m", "alertname": alert, "exp_alerts": alerts} for count, alerts in times
        ],
    }


def file_of_tests(alerts: set[str], minutes: int) -> dict[str, Any]:
    return {
        "rule_files": ["without-annotations.yml"],
        "evaluation_interval": f"{minutes}m",
        "tests": [case(alert, minutes) for alert in CASES if alert in alerts],
    }


def promtool(*arguments: str, folder: Path) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flatout-rules.yml").write_text(rules_text())
    return tmp_path


@pytest.mark.skipif(not Path("/usr/bin/promtool").exists(), reason="Prometheus is not installed")
def test_each_alert_fires_stays_quiet_and_resolves(folder: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", "flatout-rules.yml", folder=folder)
    for alert in ALERTS:
        assert alert.name in CASES or alert.expression == "vector(1)", f"{alert.name} has no case"
    rules = yaml.safe_load(rules_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)  # `check rules` has parsed them, and `test rules` would compare their numbers
    (folder / "without-annotations.yml").write_text(yaml.safe_dump(rules))
    fast = file_of_tests(CASES.keys() - SLOW, 1)
    always = {"eval_time": "1m", "alertname": "FlatoutWatchdog", "exp_alerts": [expected("FlatoutWatchdog", {})]}
    fast["tests"].append({"interval": "1m", "alert_rule_test": [always]})
    for name, tests in (("fast.yml", fast), ("slow.yml", file_of_tests(SLOW, 5))):
        (folder / name).write_text(yaml.safe_dump(tests))
        promtool("test", "rules", name, folder=folder)


@pytest.mark.skipif(not Path("/usr/bin/promtool").exists(), reason="Prometheus is not installed")
def test_the_scrape_configuration_is_one_that_prometheus_accepts(folder: Path) -> None:
    (folder / "prometheus.yml").write_text(scrape_config_text(["n1:9464", "n2:9464"]))
    promtool("check", "config", "prometheus.yml", folder=folder)
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert job["honor_labels"] is True and job["static_configs"] == [{"targets": ["n1:9464", "n2:9464"]}]


@pytest.mark.skipif(shutil.which("amtool") is None, reason="Alertmanager's amtool is not installed")
def test_amtool_accepts_the_configuration_and_routes_alerts_by_their_severity(tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(alertmanager_text())

    def amtool(*arguments: str) -> str:
        done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    assert "SUCCESS" in amtool("check-config", str(path))
    one_of_each = {alert.severity: alert.name for alert in ALERTS}
    for severity, receiver in {"page": "page", "ticket": "ticket", "info": "watchdog"}.items():
        labels = (f"alertname={one_of_each[severity]}", f"severity={severity}")
        assert amtool("config", "routes", "test", f"--config.file={path}", *labels) == f"flatout-{receiver}"


def test_what_alertmanager_silences_and_routes_are_alerts_that_exist() -> None:
    configuration = yaml.safe_load(alertmanager_text())
    names = {alert.name for alert in ALERTS}
    (rule,) = configuration["inhibit_rules"]
    for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
        assert set(matcher.partition('"')[2].rstrip('"').split("|")) <= names
    receivers = {receiver["name"] for receiver in configuration["receivers"]}
    assert {route["receiver"] for route in configuration["route"]["routes"]} <= receivers
