"""How a run ends: exit codes, and what standard error says. Each case is a process of its own with one more verb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import flatout

pytestmark = pytest.mark.usefixtures("warm")

PROGRAM = """
import sys
from flatout.cli import app, main
from flatout.errors import InputError, UsageError

@app.command("try")
def attempt(number: int = 0) -> None:
    {body}

sys.exit(main())
"""

# Under nohup, or in the background of a shell, a process inherits that SIGINT is ignored.
HEARS_CTRL_C = "signal.signal(signal.SIGINT, signal.default_int_handler)"


def run(body: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`flatout try ARGUMENTS`, where the verb `try` does `body`."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body), "try", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def flatout_command(*arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=input)


def test_a_verb_that_returns_ends_with_0() -> None:
    done = run("print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_verb_can_choose_its_exit_code() -> None:
    assert run("import typer; raise typer.Exit(1)").returncode == 1


@pytest.mark.usefixtures("cold")
def test_a_verb_starts_without_what_it_does_not_use() -> None:
    done = run("print(*{name.split('.')[0] for name in sys.modules})", "--number", "3")
    assert done.returncode == 0
    assert {"numpy", "scipy", "jinja2", "msgspec", "rich", "pydantic", "torch", "ray"}.isdisjoint(done.stdout.split())


def test_bad_input_is_one_line_and_a_hint_and_exit_code_2() -> None:
    done = run("raise InputError('no trace in runs/', hint='name a folder with rank traces')")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no trace in runs/\nhint: name a folder with rank traces\n"


def test_an_error_without_a_hint_has_no_hint_line() -> None:
    assert run("raise UsageError('either A or B')").stderr == "error: either A or B\n"


def test_an_error_of_ours_shows_no_traceback_unless_asked() -> None:
    done = run("raise KeyError('ts')")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: internal error, please report it: KeyError: 'ts'",
        "hint: run it again with FLATOUT_DEBUG=1 for the traceback",
    ]
    debugged = run("raise KeyError('ts')", FLATOUT_DEBUG="1")
    assert debugged.returncode == 2
    assert "Traceback (most recent call last)" in debugged.stderr


def test_an_unforeseen_system_error_names_the_file() -> None:
    done = run("open('/nowhere/at/all')")
    assert (done.returncode, done.stderr) == (2, "error: /nowhere/at/all: No such file or directory\n")


def test_too_little_memory_says_so() -> None:
    done = run("raise MemoryError")
    assert done.returncode == 2
    assert done.stderr.startswith("error: this needs more memory than is free\n")


@pytest.mark.parametrize("arguments", [["--nope"], ["--number", "many"], ["too", "much"]])
def test_wrong_arguments_end_with_2_and_no_traceback(arguments: list[str]) -> None:
    done = run("print('never')", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_one_line_and_130() -> None:
    done = run(f"import os, signal; {HEARS_CTRL_C}; os.kill(os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize("num_lines", [1, 100_000])
def test_a_reader_that_goes_away_is_no_error(num_lines: int) -> None:
    body = f"sys.stdin.read(); print('line\\n' * {num_lines})"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body), "try"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()  # only now does the verb write
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() == 128 + signal.SIGPIPE


def test_a_full_disk_under_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(body="print('line')"), "try"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    error = "error: standard output: No space left on device\nhint: free space there, or write elsewhere\n"
    assert (done.returncode, done.stderr) == (2, error)


def test_the_version() -> None:
    done = flatout_command("--version")
    assert (done.returncode, done.stdout) == (0, f"flatout {flatout.__version__}\n")


def test_no_verb_shows_the_help() -> None:
    done = flatout_command()
    assert "Usage: flatout" in done.stdout + done.stderr


def test_help_has_no_colour_codes() -> None:
    done = flatout_command("--help")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", ["--version", "explain straggler", "diagnose /nowhere"])
def test_closed_standard_streams(closed: str, arguments: str) -> None:
    command = f"{sys.executable} -m flatout {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "nowhere" in arguments else 0)
    assert "Error" not in done.stderr and "internal" not in done.stderr


@pytest.mark.usefixtures("cold")
def test_ctrl_c_while_the_command_line_is_imported_is_one_line() -> None:
    program = (
        "import sys, runpy, importlib.abc\n"
        "class Interrupts(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "runpy.run_module('flatout', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("name", ["", "straggler", "exposed-communication"])
def test_an_explanation_fits_a_terminal(name: str) -> None:
    said = flatout_command("explain", *name.split()).stdout
    assert max(map(len, said.splitlines())) <= 80
    assert len(said.splitlines()) > 14


def test_an_error_is_explained_from_a_file_and_from_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("[rank1]: RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.\n")
    said = flatout_command("explain", "--error", str(file)).stdout
    assert said.startswith("host-oom: another start may help\n") and "way out: " in said
    assert max(map(len, said.splitlines()[:-1])) <= 80
    asked = ("explain", "--error", "-", "--json", "--phase", "start")
    answer = json.loads(flatout_command(*asked, input="KeyError: 'peccary'").stdout)
    assert (answer["schema"], answer["class"], answer["restart"]) == ("flatout/failure-explanation", "mistake", "no")
    assert (answer["phase"], answer["exception"], answer["words"]) == ("start", "KeyError", None)


def test_an_error_is_explained_from_a_pipe_which_is_not_waited_for(tmp_path: Path) -> None:
    """As bash passes it for `flatout explain --error <(ssh node1 cat log)`."""
    reading, writing = os.pipe()
    os.write(writing, b"some line\n" * 10 + b"KeyError: 'peccary'\n")
    os.close(writing)
    explaining = [sys.executable, "-m", "flatout", "explain", "--json", "--error", f"/dev/fd/{reading}"]
    done = subprocess.run(explaining, capture_output=True, text=True, pass_fds=(reading,), timeout=60, check=True)
    os.close(reading)
    assert json.loads(done.stdout)["exception"] == "KeyError"
    os.mkfifo(tmp_path / "nobody-writes")
    refused = flatout_command("explain", "--error", str(tmp_path / "nobody-writes"))
    assert refused.stderr.startswith(f"error: {tmp_path}/nobody-writes has no text\n")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("explain", "--phase", "start"), "`--phase` requires `--error`", "flatout explain --error FILE"),
        (
            ("explain", "straggler", "--error", "-"),
            "`--error` cannot be combined with the name",
            "flatout explain --error FILE",
        ),
        (("explain", "--error", "/nowhere"), "/nowhere cannot be read: no such file", "pass a file, or - for stdin"),
        (
            ("explain", "--error", "/dev/null"),
            "/dev/null cannot be read: it is a device, and only files are read",
            "pass a file, or - for stdin",
        ),
        (
            ("explain", "--error", "-", "--phase", "end"),
            "`--phase` must be start or training",
            "flatout explain --help",
        ),
        (("tune", "--budgt=3m", "--", "train.py"), "no such option: --budgt", "flatout tune --help"),
        (("tune", "--budget"), "option '--budget' requires an argument", "flatout tune --help"),
        (("tune",), "missing argument 'command...'", "flatout tune --help"),
        (("--light",), "no such option: --light", "flatout --help"),
        (("tun",), "no such command 'tun'", "flatout --help"),
        (("schedule", "nosuch"), "no such command 'nosuch'", "flatout schedule --help"),
        (("explain", "straggler", "more"), "got unexpected extra argument", "flatout explain --help"),
        (
            ("plan", "--seq", "many"),
            "`--seq` must be a whole number of at least 1, but is `many`",
            "flatout plan --help",
        ),
    ],
)
def test_what_the_parser_refuses_is_one_line_with_the_way_out(
    arguments: tuple[str, ...], error: str, hint: str
) -> None:
    done = flatout_command(*arguments)
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert first.lower().startswith(f"error: {error}")
    assert second == f"hint: {hint}"
