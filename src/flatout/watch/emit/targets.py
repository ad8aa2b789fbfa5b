"""The targets of `flatout watch emit`. In: a target's name and the addresses to scrape. Out: the files, not written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flatout.emit.yaml_text import yaml_text
from flatout.errors import UsageError
from flatout.records.tuning import Emitted
from flatout.watch.emit.alertmanager import alertmanager_text
from flatout.watch.emit.alerts import alert_group
from flatout.watch.emit.dashboards.all import dashboard_files
from flatout.watch.emit.job_mapping import EPILOG, PROLOG
from flatout.watch.emit.node_health import KUBERNETES_CHECK, SLURM, monitor_text
from flatout.watch.emit.recording_rules import recording_group
from flatout.watch.emit.scrape_config import scrape_config_text

# What to do with the files.
_NEXT = {
    "prometheus": "add flatout-rules.yml to rule_files, then check it: promtool check rules flatout-rules.yml",
    "grafana": "import each file in Grafana (Dashboards, Import), and choose your Prometheus",
    "alertmanager": "fill in the receivers, then check it: amtool check-config alertmanager.yml",
    "dcgm-job-mapping": "name the scripts as Prolog and Epilog in slurm.conf, and start dcgm-exporter with "
    "--hpc-job-mapping-dir",
    "node-health": "name flatout-slurm-check.sh as HealthCheckProgram in slurm.conf, or give the other two files to "
    "node-problem-detector (--config.custom-plugin-monitor)",
    "scrape-config": "merge prometheus.yml into yours, next to flatout-rules.yml of `flatout watch emit prometheus`",
}


def emitted(target: str, addresses: Sequence[str] = ()) -> list[Emitted]:
    """Return the files of a target. Raise UsageError if there is no such target."""
    files_of: dict[str, Callable[[], dict[str, str]]] = {
        "prometheus": lambda: {"flatout-rules.yml": rules_text()},
        "grafana": dashboard_files,
        "alertmanager": lambda: {"alertmanager.yml": alertmanager_text()},
        "dcgm-job-mapping": lambda: {"flatout-prolog.sh": PROLOG, "flatout-epilog.sh": EPILOG},
        "node-health": lambda: {
            "flatout-slurm-check.sh": SLURM,
            "flatout-node-check.sh": KUBERNETES_CHECK,
            "flatout-node-problem.json": monitor_text(),
        },
        "scrape-config": lambda: {"prometheus.yml": scrape_config_text(addresses)},
    }
    if target not in files_of:
        *others, last = files_of
        raise UsageError(
            f"the target must be {', '.join(others)} or {last}, but is `{target}`", hint="flatout watch emit --help"
        )
    return [Emitted(path=path, text=text, notes=(_NEXT[target],)) for path, text in files_of[target]().items()]


def rules_text() -> str:
    """Return all rules, as Prometheus reads them."""
    return yaml_text({"groups": [recording_group(), alert_group()]})
