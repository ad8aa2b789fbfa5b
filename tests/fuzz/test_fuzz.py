"""A few damaged inputs of every reader, with fixed seeds; and that the fuzzer knows every reader.

`make fuzz` tries many more, with new seeds. What it finds becomes a case in the tests of the room that reads the file.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
from tests.cli.commands import commands
from tests.fuzz.fuzzer import _silent, answer, fuzz
from tests.fuzz.readers import READERS, Reader

import flatout
from flatout import input_files
from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes

PACKAGE = Path(flatout.__file__).parent
NUM_INPUTS = 3  # of each reader
OPENING = {"open_file", "open_csv", "read_bytes", "read_text", "read_lines", "read_toml"}

# Modules that open files through `input_files`, and that no sample reaches; each with why that is right.
NOT_OF_A_USER = {
    "serving.model_repository": "adds lines to the text of a file in Triton's repository, and parses none",
    "catalog.prices": "reads the prices that the package ships; a user's are read by `input_records`",
    "emit.write": "compares an emitted file with the one that it would replace",
    "watch.exporter.ledger_tail": "follows the ledger of the run that it belongs to, line by line as `ledger` does",
    "watch.record": "reads why a rank of a running job has no trace",
    "watch.record_nodes": "reads the statuses of the other nodes of a running job, as `keep.peer_board` does",
    "keep.trace_requests": "reads the request that `flatout watch` of the same job wrote",
    "watch.view.node_status": "reads the statuses of the other nodes of a running job, as `keep.peer_board` does",
    "watch.exporter.labels": "reads the control group of its own process",
    "watch.exporter.storage_metrics": "reads the counters that the kernel keeps of mounts and disks",
    "compress.journal": "reads the runs that the same command wrote",
    "compress.processes": "reads the journals of its own comparisons",
    "compress.reports": "reads what the processes of its own evaluations and trials reported",
    "keep.flight": "waits two seconds for the answers of live ranks",
    "keep.heartbeats": "maps the heartbeats of live ranks",
    "nccl_tuner.build": "reads the source that the package ships",
    "nccl_tuner.measure": "reads what its own ranks printed",
    "nccl_tuner.candidates": "reads the spaces that the package ships",
    "plan.shipped": "reads the constants that the package ships",
    "serving.journal": "reads the trials that the same command wrote",
    "plan.serving.constants": "reads the constants that the package ships",
    "predict.calibrate": "reads the records that the package ships",
    "keep.stacks": "reads the stacks that live ranks wrote when they were asked",
    "profile.finish": "ends a recording that this process made",
    "profile.folder": "joins a recording of this job",
    "run.unsaved_order": "reads the note of a rank of the running job",
}
# Paths on the command line that are written, or whose content is not read.
WRITTEN = {
    *("flatout diagnose --html", "flatout diagnose --perfetto", "flatout profile --out", "flatout doctor --data"),
    *("flatout data profile --out", "flatout data profile --html", "flatout data show --html"),
    "flatout run --data-from",
    *("flatout doctor --capture", "flatout doctor --html", "flatout bench --path", "flatout bench --out"),
    *("flatout tune --out", "flatout run --recording", "flatout submit --out", "flatout plan --html"),
    "flatout plan serve --html",
    *(
        "flatout plan --out",
        "flatout plan evaluate --fit",
        "flatout plan place --out",
        "flatout schedule replay --html",
    ),
    *("flatout schedule kubernetes --out", "flatout compare --out", "flatout init --out"),
    *("flatout cost jobs --html", "flatout index --out", "flatout cost power-cap --out"),
    *("flatout profile --html", "flatout cost jobs --csv", "flatout schedule replay --csv"),
    *("flatout log --wandb", "flatout log --tensorboard"),
    *("flatout compare --a-python", "flatout compare --b-python"),  # programs of an environment, which are run
    *("flatout compress --out", "flatout compress --model"),  # the user's own commands load the model
    *("flatout tune jax --out", "flatout tune nccl --out", "flatout tune --serve --out"),
    *("flatout watch emit --out", "flatout watch --out"),
    *("flatout data pack folder", "flatout data stage folder"),
    *("flatout track show --html", "flatout track check --html"),
}

_BY_NAME = {reader.name: reader for reader in READERS}


@pytest.mark.parametrize("name", _BY_NAME)
def test_no_damaged_input_ends_in_an_internal_error(name: str, tmp_path: Path) -> None:
    tally = fuzz(_BY_NAME[name], range(NUM_INPUTS), tmp_path)
    assert tally.findings == []
    assert tally.num_inputs == NUM_INPUTS


@contextmanager
def modules_that_open() -> Iterator[set[str]]:
    """Collect the modules of Flatout that open a file through `input_files`."""
    found: set[str] = set()
    open_file = os.open

    def noted(*arguments: Any, **options: Any) -> int:
        frame: FrameType | None = sys._getframe(1)
        if frame is not None and frame.f_globals.get("__name__") == "flatout.input_files":
            while frame is not None and frame.f_globals.get("__name__") == "flatout.input_files":
                frame = frame.f_back
            name = "" if frame is None else str(frame.f_globals.get("__name__"))
            found.add(name.removeprefix("flatout."))
        return open_file(*arguments, **options)

    with patch.object(input_files.os, "open", noted):
        yield found


def read_samples(reader: Reader, folder: Path) -> None:
    """Have all valid samples of a reader read."""
    for number, sample in enumerate(reader.samples()):
        inside = folder / f"{reader.name.replace('/', ' ')} {number}" / "input"
        for name, data in sample.files.items():
            (inside / name).parent.mkdir(parents=True, exist_ok=True)
            (inside / name).write_bytes(data)
        outcome = answer(reader, inside / sample.given)
        assert (outcome.problem, outcome.is_refused) == ("", False), f"{reader.name}, sample {number}"


def test_the_fuzzer_knows_every_reader(tmp_path: Path) -> None:
    """A module that opens files through `input_files` is reached by a valid sample, or is named with the reason."""
    opening = {name for name, path in _modules().items() if _imports_opening(path)}
    with modules_that_open() as reached:
        for reader in READERS:
            read_samples(reader, tmp_path)
    assert opening - reached - set(NOT_OF_A_USER) == set(), "add a Reader to tests/fuzz/readers.py"
    assert set(NOT_OF_A_USER) <= opening, "no longer opens files"


def test_the_fuzzer_knows_every_path_on_the_command_line() -> None:
    paths = {
        f"{name} {parameter.opts[0]}"
        for name, command in commands().items()
        for parameter in command.params
        if parameter.type.name in ("given_path", "path")
    }
    read = {parameter for reader in READERS for parameter in reader.parameters}
    assert paths - read - WRITTEN == set(), "add it to a Reader in tests/fuzz/readers.py"
    assert (read | WRITTEN) - paths == set(), "no such parameter"


# What opens or decodes a file without a bound, by the name of the call.
_UNBOUNDED = {"read_text", "read_bytes", "fromfile", "loadtxt", "genfromtxt"}
# Rooms that read the machine, their own files, or what runs in the user's process.
_OTHERWISE = (
    *("inside", "checkpoint", "probe", "launch", "catalog", "testing", "report.template", "input_files"),
    *("secrets.private", "submit.ray_cluster"),
)


def test_files_of_a_user_are_opened_by_one_module() -> None:
    assert [call for name, path in _modules().items() if not _is_exempt(name) for call in _unbounded(name, path)] == []


def _is_exempt(name: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in _OTHERWISE) and name != "probe.ceilings.saved"


def _modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the parts of a module that are of interest here, its imports and calls; none if it does not name any."""
    source = path.read_text()
    if not any(name in source for name in {"flatout.input_files", "open"} | _UNBOUNDED):  # parsing takes seconds
        return ()
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom | ast.Call))


def _imports_opening(path: Path) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "flatout.input_files"
        and OPENING & {alias.name for alias in node.names}
        for node in _nodes(path)
    )


def _may_read(function: ast.expr) -> bool:
    """Whether the name of a call is one that can read a file. To write out every call as text takes seconds."""
    if isinstance(function, ast.Attribute):
        return function.attr == "open" or function.attr in _UNBOUNDED
    return isinstance(function, ast.Name) and function.id == "open"


def _unbounded(name: str, path: Path) -> Iterator[str]:
    """Yield the places where a file is read by `Path.read_text`, `open` for reading, and the like."""
    for node in _nodes(path):
        if not isinstance(node, ast.Call) or not _may_read(node.func):
            continue
        text = ast.unparse(node)
        is_read = isinstance(node.func, ast.Attribute) and node.func.attr in _UNBOUNDED
        function = text.partition("(")[0]
        is_open = function == "open" or (function.endswith(".open") and function != "os.open")
        mode = next((a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)), "r")
        is_read |= is_open and set(mode) <= set("rbt") and "Image" not in text and "tarfile" not in text
        if is_read and "/proc/" not in text:
            yield f"{name}:{node.lineno}: {text[:80]}"


# The bounds, on both sides


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "pipe", "it is a pipe"), (tmp_path, "it is a folder"), (Path("/dev/zero"), "device")):
        with pytest.raises(OSError, match=why):
            read_bytes(path)
    (tmp_path / "file").write_bytes(b"a" * 8)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link", max_bytes=8) == b"a" * 8
    with pytest.raises(OSError, match="more than 0 MiB"):
        read_bytes(tmp_path / "file", max_bytes=7)


@pytest.mark.parametrize(("length", "is_read"), [(100, True), (101, False)])
def test_the_end_of_a_stream_is_kept_and_a_stream_without_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, length: int, is_read: bool
) -> None:
    monkeypatch.setattr(input_files, "MAX_STREAM_BYTES", 100)
    monkeypatch.setattr(input_files, "_CHUNK_BYTES", 7)
    data = bytes(range(length))
    if is_read:
        assert input_files.read_end_of_stream(io.BytesIO(data), max_bytes=9) == data[-9:]
        return
    with pytest.raises(OSError, match="or no end"):
        input_files.read_end_of_stream(io.BytesIO(data), max_bytes=9)


def test_the_end_of_a_file_and_of_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    os.mkfifo(tmp_path / "pipe")
    assert input_files.read_end(tmp_path / "file", max_bytes=3) == b"789"
    assert input_files.read_end(tmp_path / "pipe", max_bytes=3) == b""
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="and only files are read"):
            input_files.read_end(path, max_bytes=3)


def test_a_line_of_a_log_and_a_number_in_it_are_cut() -> None:
    line = "a" * input_files.MAX_LOG_LINE
    assert input_files.bounded_log(f"{line}\n{line}b\nc\n") == f"{line}\n{line}\nc\n"
    assert input_files.bounded_log("x" + "7" * 64 + " y") == "x" + "7" * 64 + " y"
    assert input_files.bounded_log("x" + "7" * 65 + " y") == "x" + "7" * 64 + " y"


def test_a_line_of_records_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 8)
    (tmp_path / "lines").write_bytes(b"1234567\n12345678\n123456789abcdefgh\nend")
    assert list(input_files.read_lines(tmp_path / "lines")) == [b"1234567\n", b"12345678", b"12345678", b"end"]


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b'"\xff"', b"9" * 5000 + b"x"])
def test_json_that_cannot_be_decoded_is_one_kind_of_error(text: bytes) -> None:
    import msgspec

    for decode in (decode_json, input_files.decode_written_json):
        with pytest.raises(msgspec.DecodeError):
            decode(text)


@pytest.mark.parametrize("half", ["\\ud800", "\\uDC80", "\\udfff\\ud800"])
@pytest.mark.parametrize("form", ['"{}"', '["a", "{}"]', '{{"a": {{"b": "x{}y"}}}}', '{{"{}": NaN}}'])
def test_half_of_a_character_is_replaced_in_json_of_python(half: str, form: str) -> None:
    """Python writes a file's name that is not UTF-8 with such halves, which no file or terminal takes."""
    value = input_files.decode_written_json(form.format(half).encode())
    text = json.dumps(value, ensure_ascii=False)
    assert "\ufffd" in text and text.encode()
    assert input_files.decode_written_json(b'"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"


@pytest.mark.parametrize(
    "data",
    [
        b'["\xed\xa0\x80"]',
        b'{"\xed\xbf\xbf": 1}',
        '["\ud800"]'.encode("utf-16", "surrogatepass"),
        '["\\ud800"]'.encode("utf-16"),
    ],
)
def test_half_of_a_character_in_bytes_is_replaced_too(data: bytes) -> None:
    """Python's `json` lets them through, and no terminal and no other decoder takes them."""
    assert "\ufffd" in json.dumps(input_files.decode_written_json(data), ensure_ascii=False)
    assert json.dumps(input_files.decode_written_json(data), ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = \udcff"])
def test_toml_that_cannot_be_decoded_is_one_kind_of_error(tmp_path: Path, text: str) -> None:
    import tomllib

    (tmp_path / "a.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(tomllib.TOMLDecodeError):
        input_files.read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("part", ["0", "a-b", '"a b"', "'='", "a "])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[[{}]]", "a = {{ {} = 1 }}"])
def test_a_dotted_key_has_a_bounded_number_of_parts(tmp_path: Path, part: str, form: str) -> None:
    """Python's parser takes minutes for a key of 100,000 parts."""
    import tomllib

    path = tmp_path / "a.toml"
    path.write_text(form.format(".".join([part] * input_files.MAX_KEY_PARTS)))
    assert len(input_files.read_toml(path)) == 1
    path.write_text(form.format(".".join([part] * (input_files.MAX_KEY_PARTS + 1))))
    with pytest.raises(tomllib.TOMLDecodeError, match="a dotted key of more than 64 parts"):
        input_files.read_toml(path)


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "a." * 500_000, '"' * 1_000_000, "a" + " " * 1_000_000, ". " * 500_000]
)
def test_text_without_end_is_no_toml_within_a_second(tmp_path: Path, text: str) -> None:
    import tomllib

    (tmp_path / "a.toml").write_text(text)
    began_s = time.process_time()
    with pytest.raises(tomllib.TOMLDecodeError):
        input_files.read_toml(tmp_path / "a.toml")
    assert time.process_time() - began_s < 1.0


@pytest.mark.parametrize(("length", "is_whole"), [(1200, True), (1201, False)])
def test_a_message_is_short_whatever_it_quotes(length: int, is_whole: bool) -> None:
    message = "b" + "a" * (length - 2) + "c"
    assert (str(InputError(message)) == message) == is_whole
    assert len(str(InputError(message))) <= 1200
    assert str(InputError(message)).startswith("ba") and str(InputError(message)).endswith("ac")


# The fuzzer itself


def test_the_fuzzer_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A reader that fails, one that takes time without end, and one that takes memory without end."""

    def failing(path: Path) -> None:
        raise KeyError(path.name)

    def refusing(path: Path) -> None:
        raise InputError("one line")

    def greedy(path: Path) -> None:
        assert len(bytearray(300 << 20)) > 0

    def found(read: Any) -> list[str]:
        reader = Reader("made", _BY_NAME["ledger"].samples, read)
        return [finding.what for finding in fuzz(reader, range(1), tmp_path).findings]

    def slow(path: Path) -> None:
        while True:
            pass

    assert found(failing) == ["KeyError: 'of_0_1.jsonl'"]
    assert found(refusing) == []
    assert found(greedy) == ["memory: more than 256 MiB"]
    with patch("tests.fuzz.fuzzer.MAX_CPU_S", 0.2):
        assert found(slow) == ["time: more than 0.2 s of processor time"]
    with patch("tests.fuzz.fuzzer.MAX_WAIT_S", 0.2):
        os.mkfifo(tmp_path / "pipe")
        assert found(lambda path: (path.parents[1] / "pipe").read_bytes()) == ["time: it waited more than 0.2 s"]


def test_the_same_seed_gives_the_same_input(tmp_path: Path) -> None:
    seen: list[bytes] = []
    reader = Reader("made", _BY_NAME["ledger"].samples, lambda path: seen.append(path.read_bytes()))
    for _ in range(2):
        fuzz(reader, range(20), tmp_path)
    half = len(seen) // 2
    assert seen[:half] == seen[half:] and len(set(seen)) > 1
    with _silent(tmp_path):
        pass
