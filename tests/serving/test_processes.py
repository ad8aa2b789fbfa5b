"""Servers as real processes, in real time: the simulated engine behind HTTP, through the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from flatout.cli import parser
from flatout.errors import FlatoutError, InputError
from flatout.inside.protocol import Variable
from flatout.serving.engine import read_engine
from flatout.serving.load import Load, TracedLoad
from flatout.serving.processes import ProcessBackend, with_port
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerError, ServerTrialSetup, run_trial
from flatout.serving.words import ServerCommand

HERE = Path(__file__).parent
TABLE = HERE / "fake.toml"
SERVER = (sys.executable, "-S", str(HERE / "fake_server.py"))
LOAD = Load(rates=(40.0,), requests=8, prompt_tokens=16, output_tokens=4, held_prompts=1, held_tokens=4, timeout_s=20.0)


def backend(tmp_path: Path, *words: str, limit_s: float = 20.0, **environment: str) -> ProcessBackend:
    command = ServerCommand(words=(*SERVER, *words), environment=environment)
    return ProcessBackend(command, read_engine(TABLE), LOAD, tmp_path, mark=str(tmp_path), start_limit_s=limit_s)


def left(mark: str) -> list[int]:
    """Return the processes that carry the mark of a tuning."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(Variable.TUNING) == mark
        except (psutil.Error, OSError):
            continue
        if is_ours and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_a_trial_measures_a_real_server_and_leaves_no_child(tmp_path: Path) -> None:
    plan = ServerTrialSetup(
        engine=read_engine(TABLE),
        traced=TracedLoad(load=LOAD, path=""),
        limits=parse_slo("p99 ttft<5s"),
        rates_per_s=(40.0,),
    )
    trial = asyncio.run(run_trial(backend(tmp_path, FAKE_CHILD="1"), plan, "baseline", (), 0))
    assert trial.outcome == "completed", trial.problem
    (point,) = trial.points
    assert (point.num_completed, point.num_tokens) == (8, 32)
    assert point.tokens_of_request == (4,) * 8
    assert point.ttft is not None
    assert 0.004 < point.ttft.p50_s < 2.0  # an iteration takes at least 4 ms
    assert len(trial.answers[0]) == 4
    (inside,) = trial.windows
    assert inside.is_from_metrics
    assert inside.prefill_s is not None
    assert inside.cores_busy is not None
    assert left(str(tmp_path)) == []


def started(tmp_path: Path, limit_s: float = 20.0, **environment: str) -> None:
    asyncio.run(backend(tmp_path, limit_s=limit_s, **environment).start("baseline", (), 0))


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="ended with code 1: the fake server was told to fail"):
        started(tmp_path, FAKE_FAILS="1")


def test_a_server_that_is_not_healthy_in_time_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"not healthy within 0\.3 s"):
        started(tmp_path, limit_s=0.3, FAKE_SLEEPS="1")
    assert left(str(tmp_path)) == []


def test_the_command_gets_a_free_port_by_its_placeholder_or_its_option() -> None:
    engine = read_engine(TABLE)
    command, port = with_port(ServerCommand(words=("s", "--listen=:{port}")), engine)
    assert command.words == ("s", f"--listen=:{port}")
    command, port = with_port(ServerCommand(words=("s", "--port", "8000", "-x")), engine)
    assert command.words == ("s", "--port", str(port), "-x")


def run(words: Sequence[str]) -> int:
    """Run the command line in this process; return its exit code."""
    return int(parser()(list(words), prog_name="flatout", standalone_mode=False) or 0)


def test_the_command_line_tunes_a_server_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = tmp_path / "load.toml"
    load.write_text("rates = [50]\nrequests = 12\nprompt_tokens = 8\noutput_tokens = 4\nheld_prompts = 1\n")
    out = tmp_path / "out"
    server = f"{' '.join(SERVER)} --base-s 0.02 --max-num-seqs 1"
    words = ["--serve", server, "--load", str(load), "--slo", "p99 ttft<150ms", "--trials", "4", "--out", str(out)]
    with pytest.raises(InputError, match="a load must be"):
        run(["tune", *words[:2], "--load", "x.yaml", *words[4:], "--engine", str(TABLE)])
    code = run(["tune", *words, "--engine", str(TABLE), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "flatout/serving"
    assert result["causes"][0]["name"] == "under-batched"
    assert len(result["trials"]) == result["num_trials"] == 4
    assert [knob["knob"] for knob in result["unoffered"]] == ["not-an-option"]
    assert code == (0 if result["adopted"] else 1)
    assert json.loads((out / "serving.json").read_bytes())["num_trials"] == 4
    assert "under-batched" in (out / "report.html").read_text()
    assert sorted(os.listdir(out / "logs")) == [f"trial-{number}.log" for number in range(4)]
    assert run(["tune", *words, "--engine", str(TABLE), "--json"]) == code
    again = capsys.readouterr()
    assert "resuming: 4 trials of" in again.err
    assert json.loads(again.out)["trials"] == result["trials"]
    other = [word.replace("150ms", "140ms") for word in words]
    with pytest.raises(FlatoutError, match="already has a result"):
        run(["tune", *other, "--engine", str(TABLE)])
