"""A command apart from us and limited: its output in a file, and no process of its left, whatever it does."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from flatout.errors import InputError
from flatout.launch import ExitStatus, limited, run_limited

# Starts a process of its own session that ignores being asked to end, and writes its number once it does.
STUBBORN = """
import os, signal, subprocess, sys, time
child = (
    "import os, pathlib, signal, sys, time\\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
    "file = pathlib.Path(sys.argv[1])\\n"
    "file.with_suffix('.new').write_text(str(os.getpid()))\\n"
    "file.with_suffix('.new').rename(file)\\n"
    "time.sleep(600)\\n"
)
subprocess.Popen([sys.executable, "-c", child, sys.argv[1]], start_new_session=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "_GRACE_S", 1.0)
    monkeypatch.setattr(limited, "_LOOK_S", 0.1)


def run(tmp_path: Path, *command: str, limit_s: float = 60.0) -> ExitStatus:
    return run_limited(command, os.environ, output=tmp_path / "output.log", limit_s=limit_s)


def python(tmp_path: Path, program: str, *arguments: object, limit_s: float = 60.0) -> ExitStatus:
    return run(tmp_path, sys.executable, "-c", program, *map(str, arguments), limit_s=limit_s)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_gone(file: Path) -> bool:
    """Whether the process that wrote its number into the file is no more; the kernel may need a moment for it."""
    pid = int(file.read_text())
    for _ in range(100):
        if not lives(pid):
            return True
        time.sleep(0.05)
    return False


def test_all_output_is_in_the_file_in_its_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys\nfor i in range(3):\n print(i, flush=True)\n print('e', i, file=sys.stderr, flush=True)"
    ended = python(tmp_path, program)
    assert (ended.code, ended.signal, ended.is_timed_out) == (0, None, False)
    assert (tmp_path / "output.log").read_text().split() == ["0", "e", "0", "1", "e", "1", "2", "e", "2"]
    assert capfd.readouterr() == ("", "")


def test_the_command_reads_nothing_and_leads_a_session_of_its_own(tmp_path: Path) -> None:
    python(tmp_path, "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))")
    assert (tmp_path / "output.log").read_text() == "True ''\n"


def test_the_environment_is_the_given_one(tmp_path: Path) -> None:
    environment = {**os.environ, "ONE": "1"}
    command = [sys.executable, "-c", "import os; print(os.environ['ONE'])"]
    run_limited(command, environment, output=tmp_path / "out", limit_s=60)
    assert (tmp_path / "out").read_text() == "1\n"


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_code_is_the_commands(tmp_path: Path, code: int) -> None:
    ended = run(tmp_path, "sh", "-c", f"exit {code}")
    assert (ended.code, ended.signal, ended.shell_code) == (code, None, code)


def test_a_signal_that_ended_it_is_told(tmp_path: Path) -> None:
    ended = run(tmp_path, "sh", "-c", "kill -9 $$")
    assert (ended.code, ended.signal, ended.is_timed_out) == (None, signal.SIGKILL, False)


def test_a_command_past_its_limit_is_ended(tmp_path: Path) -> None:
    ended = python(tmp_path, "import time; print('on', flush=True); time.sleep(600)", limit_s=1.5)
    assert (ended.is_timed_out, ended.code, ended.signal) == (True, None, signal.SIGTERM)
    assert (tmp_path / "output.log").read_text() == "on\n"


def test_a_launcher_past_its_limit_may_end_its_ranks_itself(tmp_path: Path) -> None:
    program = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "def end(*_):\n"
        "    print('rank', child.poll(), flush=True)\n"
        "    child.kill()\n"
        "    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "time.sleep(600)\n"
    )
    ended = python(tmp_path, program, limit_s=1.5)
    assert (ended.is_timed_out, ended.code) == (True, 9)
    assert (tmp_path / "output.log").read_text() == "rank None\n"


def test_a_stubborn_child_that_left_the_session_ends_with_its_parent_at_the_limit(tmp_path: Path) -> None:
    ended = python(tmp_path, STUBBORN + "time.sleep(600)", tmp_path / "pid", limit_s=3.0)
    assert ended.is_timed_out
    assert is_gone(tmp_path / "pid")


def test_a_command_that_is_stubborn_itself_is_made_to_end(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    assert python(tmp_path, program, limit_s=1.0).signal == signal.SIGKILL


def test_a_stubborn_child_does_not_outlive_a_command_that_ends_well(tmp_path: Path) -> None:
    ended = python(tmp_path, STUBBORN + "time.sleep(1)", tmp_path / "pid")
    assert (ended.code, ended.is_timed_out) == (0, False)
    assert is_gone(tmp_path / "pid")


def test_a_child_that_was_started_in_the_last_moment_does_not_outlive_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited, "_LOOK_S", 1000.0)  # nobody looked while its parent lived
    file = tmp_path / "pid"
    ended = run(tmp_path, "sh", "-c", f"sleep 600 & echo $! > {file}")
    assert ended.code == 0
    assert is_gone(file)


def test_each_child_that_is_left_is_asked_before_it_is_made_to_end(tmp_path: Path) -> None:
    child = (
        f"trap 'echo asked >> {tmp_path}/asked; exit' TERM; echo x >> {tmp_path}/ready; while :; do sleep 0.05; done"
    )
    ready = f'while [ "$(cat {tmp_path}/ready 2>/dev/null | wc -l)" -lt 3 ]; do sleep 0.05; done'
    ended = run(tmp_path, "sh", "-c", f'for i in 1 2 3; do sh -c "$1" & done; {ready}', "sh", child)
    assert ended.code == 0
    assert (tmp_path / "asked").read_text().split() == ["asked"] * 3


def test_an_interruption_of_ours_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(family: limited.ProcessTree, **_: bool) -> None:
        original(family, is_forced=True)
        if (tmp_path / "pid").exists() and not family.is_interrupted:  # type: ignore[attr-defined]
            family.is_interrupted = True  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    original = limited.ProcessTree.look
    monkeypatch.setattr(limited.ProcessTree, "is_interrupted", False, raising=False)
    monkeypatch.setattr(limited.ProcessTree, "look", look)
    with pytest.raises(KeyboardInterrupt):
        python(tmp_path, STUBBORN + "time.sleep(600)", tmp_path / "pid")
    assert is_gone(tmp_path / "pid")


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the command `no-such-command` was not found"):
        run(tmp_path, "no-such-command")


def test_a_file_that_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    with pytest.raises(InputError, match=r"train\.py` cannot be started: permission denied"):
        run(tmp_path, str(tmp_path / "train.py"))
