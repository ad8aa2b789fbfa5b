"""The functions of `flatout.api`: their signatures, what they return, and that the commands have no second path."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import flatout.api
import flatout.cli
from flatout.api import diagnose, plan, replay
from flatout.api.results import DiagnosisResult
from flatout.errors import FlatoutError, UsageError
from flatout.records.diagnosis import Diagnosis
from flatout.records.plan import Plan
from flatout.records.replay import ReplayReport

ROOT = Path(__file__).parents[2]
STRAGGLER = ROOT / "examples/traces/straggler.tar.xz"

# The arguments of each function, without types. A change here breaks users' scripts, unless it only adds a keyword.
SIGNATURES = {
    "diagnose": "paths, *, ranks=None, untraced_step_s=None, ceilings=None, perfetto=None, engine='auto', force=False, "
    "progress=None, note=no_note",
    "diff": "before, after, *, progress=None",
    "profile": "command, *, out=None, steps=3, warmup=None, light=False, force=False, progress=None, say=say_to_stderr",
    "tune": "command, *, out=None, budget_s=1800.0, trials=None, allow='exact', objective=None, latency=None, "
    "knobs=(), steps=None, warmup=None, sbatch_options=None, blocks=False, history=True, apply=False, force=False, "
    "typed=(), say=say_to_stderr",
    "compare": "command=(), *, a=None, b=None, a_ref=None, b_ref=None, a_python=None, b_python=None, gate=None, "
    "budget_s=1800.0, trials=None, steps=None, warmup=None, objective=None, profiles=3, out=None, force=False, "
    "typed=(), say=say_to_stderr",
    "compress": "evaluation, benchmark, *, metric, max_loss, model=None, final_evaluation=None, "
    "batches=(), variants=(), lower_is_better=None, budget_s=3600.0, trials=None, out=None, force=False, "
    "typed=(), say=say_to_stderr",
    "plan": "model, cluster, *, global_batch=1024, seq=4096, document=0, images=0, precision='bf16', optimizer='adam', "
    "gradients=None, pure_bf16=False, lora_rank=0, lora_targets='attention', base_bits=16, freeze=(), fix=(), "
    "target='any', calibrate=None, risk=0.1, top=10, goal=None, gpu_price=None, prices=None, terms='on-demand', "
    "region=None, fabric=None, oversubscription=None, leaf_nodes=None, torus=None, note=no_note",
    "replay": "jobs, *, nodes=None, gpus_per_node=None, cluster=None, policies=('fifo',), checkpoint_s=1800.0, "
    "restart_s=180.0, failures=0.0, repair_s=14400.0, seeds=1, starved_after_s=1209600.0, sharing=(), progress=None",
}
# What composes the stages of each command: only `flatout.api` may call it, not the command line.
COMPOSERS = {
    "diagnose_paths",
    "TuneCommand",
    "CompareCommand",
    "CompressCommand",
    "PlanRequest",
    "search_context",
    "flatout.profile.record",
    "flatout.schedule.replay",
}
COMMANDS = ("compare", "compress", "diagnose", "diff", "plan", "profile", "schedule_replay", "tune")


def shown(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={getattr(parameter.default, '__name__', None) or repr(parameter.default)}"


@pytest.mark.parametrize("name", flatout.api.__all__)
def test_the_arguments_of_each_function_stay(name: str) -> None:
    parameters = list(inspect.signature(getattr(flatout.api, name)).parameters.values())
    words = [shown(parameter) for parameter in parameters]
    first_keyword = next(at for at, one in enumerate(parameters) if one.kind is inspect.Parameter.KEYWORD_ONLY)
    words.insert(first_keyword, "*")
    assert ", ".join(words) == SIGNATURES[name]


@pytest.mark.parametrize("name", flatout.api.__all__)
def test_every_argument_has_a_type_and_is_described(name: str) -> None:
    function = getattr(flatout.api, name)
    signature = inspect.signature(function)
    assert all(one.annotation is not one.empty for one in signature.parameters.values())
    assert signature.return_annotation.endswith("Result")
    if name == "plan":  # its other arguments describe the training as the options do
        return
    usual = {"command", "paths", "steps", "warmup", "trials", "force"}  # as of a command, or of all trials
    assert {one for one in signature.parameters if f"`{one}`" not in function.__doc__} - usual == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_no_second_path_beside_the_api(command: str) -> None:
    source = (Path(flatout.cli.__file__).parent / f"{command}.py").read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.name for alias in node.names} | {f"{node.module}.{alias.name}" for alias in node.names}
    assert "flatout.api" in source
    assert {name for name in imported if name in COMPOSERS or name == "flatout.schedule.replay.replay"} == set()


@pytest.fixture(scope="module")
def job() -> DiagnosisResult:
    return diagnose(STRAGGLER)


def test_a_diagnosis_is_the_record_that_the_command_prints(
    job: DiagnosisResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(job, Diagnosis)
    sys_argv, sys.argv = sys.argv, ["flatout", "diagnose", str(STRAGGLER), "--json"]
    try:
        assert flatout.cli.main() == 0
    finally:
        sys.argv = sys_argv
    printed = json.loads(capsys.readouterr().out)
    returned = job.to_dict()
    assert returned.pop("command") == ["flatout", "diagnose", str(STRAGGLER)]
    assert printed.pop("command") == ["flatout", "diagnose", str(STRAGGLER), "--json"]
    assert returned == printed


def test_the_tables_of_a_diagnosis_have_its_numbers(job: DiagnosisResult) -> None:
    ranks = job.rows("ranks")
    assert [row["rank"] for row in ranks] == [0, 1, 2, 3]
    assert ranks[2]["parts_s.compute"] == job.ranks[2].parts_s["compute"]
    parts = [value for name, value in ranks[2].items() if name.startswith("parts_s.")]
    assert sum(parts) == pytest.approx(ranks[2]["window_s"], abs=1e-6)
    findings = job.rows()
    assert [row["name"] for row in findings] == [finding.name for finding in job.findings]
    assert findings[0]["evidence"]["cause"] == "compute"
    with pytest.raises(UsageError, match="`table` must be one of findings, ranks, "):
        job.rows("rank")


def test_a_notebook_shows_the_report_as_one_escaped_element(job: DiagnosisResult) -> None:
    shown_html = job._repr_html_()
    assert shown_html.count("<") == 2
    assert shown_html.startswith('<pre role="region" tabindex="0" aria-label="flatout diagnose" ')
    assert "straggler: 46.2 ms per step, 50 %, rank 2" in shown_html
    assert job.to_html().startswith("<!doctype html>")


def test_without_pandas_the_error_names_the_way_out(job: DiagnosisResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(UsageError, match="`to_pandas` needs pandas, which is not installed"):
        job.to_pandas()


def test_a_plan_is_ranked_and_has_a_page() -> None:
    result = plan("llama3-8b", "h100x8", top=3)
    assert isinstance(result, Plan)
    rows = result.rows()
    assert len(rows) == 3
    assert rows[0]["step_time_s"] == min(row["step_time_s"] for row in rows)
    assert rows[0]["layout.tp"] == result.layouts[0].layout.tp
    assert "next:" not in result.to_text()
    assert result.to_dict()["schema"] == "flatout/plan"
    assert "llama3-8b" in result.to_html()


def test_a_replay_gives_the_waits_worked_out_by_hand(tmp_path: Path) -> None:
    """Two jobs of 100 s that each need all GPUs: the second waits for the first."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_s,num_gpus,duration_s\n0,8,100\n0,8,100\n")
    result = replay(jobs, nodes=1, gpus_per_node=8)
    assert isinstance(result, ReplayReport)
    assert result.rows()[0]["wait_mean_s"] == pytest.approx(50)
    assert "next:" not in result.to_text()
    assert "<dt>Next</dt>" not in result.to_html()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("diagnose([])", "`paths` must name at least one file"),
        ("diagnose('')", "a path must not be empty"),
        ("diagnose('missing')", "missing"),
        ("diagnose(None)", "a path must be a text or a pathlib.Path, but is None"),
        ("diagnose(['traces', 3])", "a path must be a text or a pathlib.Path, but is 3"),
        ("profile([])", "`command` must have at least one word"),
        ("tune('')", "`command` must have at least one word"),
        ("profile(['python', 3])", "`command` must be a text or a list of texts, but is ['python', 3]"),
        ("compare(3)", "`command` must be a text or a list of texts, but is 3"),
        ("diagnose('x', untraced_step_s=-1)", "`untraced_step_s` must be from 0 to 864,000, but is -1"),
        ("profile('true', steps=0)", "`steps` must be from 1 to 1,000,000,000, but is 0"),
        ("profile('a \"b')", "a command cannot be parsed as shell words"),
        ("tune('true', trials=3)", "`trials` must be from 4 "),
        ("tune('true', budget_s=0)", "`budget_s` must be from 1 to 2,592,000"),
        ("tune('true', allow='all')", "`allow` must be one of exact, rounding, semantic, but is 'all'"),
        ("tune('true', latency='50ms')", "`--latency` must limit a percentile of the calls, such as p99<50ms"),
        ("tune('true', objective='speed')", "must be one of samples/s, tokens/s, steps/s"),
        ("compare('true', gate=-0.1)", "`gate` must be from 0 to 10, but is -0.1"),
        ("compare()", "is missing, and there is no command"),
        ("compress('a', 'b', metric='f1', max_loss='1%', trials=3)", "`trials` must be from 4 "),
        ("compress('a', 'b', metric='f1', max_loss='1%', batches=[8])", "`--batches` needs {batch} in `--bench`"),
        ("compress('a', 'b {batch}', metric='f1', max_loss='1%', batches=[0])", "`--batches` must be whole numbers"),
        ("plan('llama3-8b', 'h100x8', risk=2)", "`risk` must be from 1e-12 to 1, but is 2"),
        ("plan('no-such-model', 'h100x8')", "no-such-model"),
        ("replay('jobs.csv')", "a replay needs a cluster"),
        ("replay('jobs.csv', nodes=1, gpus_per_node=0)", "`gpus_per_node` must be from 1 to 1,024, but is 0"),
    ],
)
def test_a_bad_argument_is_one_line(call: str, message: str) -> None:
    with pytest.raises(FlatoutError) as raised:
        eval(call, {name: getattr(flatout.api, name) for name in flatout.api.__all__})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_import_loads_nothing_heavy() -> None:
    program = "import flatout.api, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"numpy", "scipy", "jinja2", "msgspec", "rich", "typer", "pandas", "torch", "ray"} == set()
