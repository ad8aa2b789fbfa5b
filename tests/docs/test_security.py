"""`SECURITY.md` says what the code does: the programs that it starts, its connections, what it executes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import flatout
from flatout.probe.ceilings.saved import saved_path
from flatout.probe.snapshot import _COMMANDS
from flatout.tune.files import history_path

ROOT = Path(__file__).parents[2]
PACKAGE = Path(flatout.__file__).parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

# Where a connection is opened or accepted, and the words of the table that stand for it.
CONNECTIONS = {
    "watch/exporter/process.py": "`run --metrics-port`",
    "probe/ceilings/rank_group.py": "`torch.distributed` (gloo, NCCL) of the benchmark's ranks",
    "checkpoint/peers.py": "a gloo group among the job's ranks",
    "nccl_tuner/backends.py": "of the ranks that measure",
    "nccl_tuner/rank.py": "of the ranks that measure",
    "probe/ceilings/collectives.py": "of the benchmark's ranks",
    "probe/ceilings/pairs.py": "of the benchmark's ranks",
    "inside/patches/background_checkpoint.py": "`background_checkpoint`",
    "inside/gradient_hooks/lane.py": "`ddp_hook`",
    "schedule/live/usage.py": "`schedule slurm --usage URL`",
    "submit/ray.py": "`submit --to ray`",
    "submit/ray_start.py": "`ray.init`",
    "probe/redfish_client.py": "`--redfish URL`",
    "watch/exporter/otlp.py": "`--metrics-otlp URL`",
    "serving/openai_client.py": "your server, over HTTP",
    "serving/processes.py": "`tune --serve`",
    "run_trackers/stores.py": "an MLflow server",
}
_CONNECTS = re.compile(
    r"urlopen|build_opener|read_answer\((?!\n)|AsyncClient\(|OTLPMetricExporter\(|mlflow\.start_run|start_http_server|HTTPServer"
    r"|init_process_group\(|new_group\(|ray\.init\(|create_connection|create_server|\.bind\(\("
)
# These name a call of the user's job, or write one into a file for the user.
_ONLY_NAME_IT = {
    "service_answers.py",
    "emit/plan_fsdp2.py",
    "inside/liveness/heartbeat.py",
    "inside/patches/bind_cores.py",
    "inside/recording/start_times.py",
}


def _sources() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def _programs(source: str) -> set[str]:
    """Return the first words of the lists that are started as programs: `["sbatch", ...]`, `("dmesg", "-x")`."""
    programs = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not re.search(
            r"(?:^|\.)(?:run|Popen|_run|_text|_output)$", ast.unparse(node.func)
        ):
            continue
        first = node.args[0] if node.args else None
        if isinstance(first, (ast.List, ast.Tuple)) and first.elts:
            first = first.elts[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            programs.add(first.value)
    return programs


def test_every_program_that_is_started_is_named() -> None:
    started = {command[0] for command in _COMMANDS.values()}
    for name, source in _sources().items():
        if "subprocess" in source or name.startswith(("schedule/live", "launch")):
            started |= _programs(source)
    programs = {Path(program).name for program in started if "/" not in program} - {""}
    assert {"nvidia-smi", "dmesg", "journalctl", "scontrol", "scancel", "squeue", "sinfo", "sacct"} <= programs
    assert {program for program in programs if f"`{program}`" not in TEXT} == set()


def test_every_connection_is_named() -> None:
    connecting = {name for name, source in _sources().items() if _CONNECTS.search(source)} - _ONLY_NAME_IT
    assert connecting == CONNECTIONS.keys()
    assert {words for words in CONNECTIONS.values() if words not in TEXT} == set()


def test_metrics_are_served_to_this_host_alone_unless_asked() -> None:
    source = (PACKAGE / "cli" / "run.py").read_text(encoding="utf-8")
    assert re.search(r'metrics_address: Annotated\[.*?\] = "127\.0\.0\.1"', source, re.DOTALL)
    assert "`127.0.0.1` unless `--metrics-address`" in TEXT


def test_the_folder_of_the_users_state_is_named() -> None:
    for path in (history_path({"XDG_STATE_HOME": "/s"}), saved_path("h", {"XDG_STATE_HOME": "/s"})):
        assert path.is_relative_to("/s/flatout")
    assert "`$XDG_STATE_HOME/flatout` (`~/.local/state/flatout`)" in TEXT


def test_nothing_is_unpickled_and_code_is_run_only_where_it_says() -> None:
    names = (
        *(r"pickle\.loads?\(", r"marshal\.loads?\(", r"(?<![.\w`])(?:exec|eval)\((?!\))", r"yaml\.load\("),
        *(r"run_path\(", "shell=True", r"os\.system\("),
    )
    runs = re.compile("|".join(names))
    found = {name for name, source in _sources().items() if runs.search(source)}
    assert found == {"plan/modules.py"}, "`plan --model FILE.py:NAME`"
    assert "`plan --model FILE.py:NAME` | full: the file is executed" in TEXT


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_it_is_linked(page: str) -> None:
    assert re.search(r"\]\((?:SECURITY|security)\.md\)", (ROOT / page).read_text(encoding="utf-8"))
