"""Each file that Flatout creates is created privately, or stands in a table with the reason why it holds no secret."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flatout

PACKAGE = Path(flatout.__file__).parent

# What is written by modules that create files in another way than `open_private`, `write_private` and `write_new`.
# Whoever adds one asks: can a command, a message, an environment or the output of a job get into this file?
WRITERS = {
    "checkpoint/files.py": "the tensors of the user's checkpoint, with the user's own mode",
    "checkpoint/lock.py": "host and process that hold a checkpoint folder",
    "checkpoint/scripted.py": "a copy of the user's checkpoint",
    "checkpoint/store.py": "the log of a checkpoint folder and why a rank failed, both masked",
    "cli/__init__.py": "/dev/null",
    "compress/folder_files.py": "the user's own weights in bfloat16, beside copies of the files of their folder",
    "inside/checkpoints/safe_save.py": "sizes and checksums of the user's checkpoint",
    "inside/checks/data_check.py": "numbers",
    "inside/checks/gradients.py": "numbers",
    "inside/checks/model_outputs.py": "numbers",
    "inside/compression/int8_static.py": "names of modules and the ranges of their inputs and outputs",
    "inside/compression/memory_peak.py": "a number, to the kernel",
    "inside/compression/sensitivity.py": "names of modules and numbers",
    "inside/data_cache/reads.py": "numbers of reads",
    "inside/data_cache/store.py": "copies of the user's files, for the user alone; the size of all copies",
    "inside/failure/stderr_tail.py": "the end of standard error, for the user alone; masked when it is read",
    "inside/overlay/enter.py": "why the kernel refused an overlay",
    "inside/blocks/dropped.py": "numbers of units and of arms",
    "inside/phases/end_rank.py": "/dev/null",
    "inside/phases/trace_window.py": "torch's trace, cut in place",
    "inside/liveness/asked_trace.py": "why there is no trace: a reason of our own, or an error of the file system",
    "inside/liveness/beat.py": "numbers, host and process",
    "inside/liveness/heartbeat.py": "the flight recorder's records of collectives",
    "inside/liveness/stacks.py": "stacks: files, lines and names of functions, without values",
    "inside/liveness/unsaved_order.py": "names of classes",
    "inside/phases/consensus.py": "numbers of steps",
    "inside/phases/stop.py": "the number of a step",
    "inside/recording/loader_watch.py": "numbers",
    "inside/recording/step_file.py": "rows of numbers; how the process ended, as the name of an exception",
    "inside/startup/sitecustomize.py": "processes and kinds of events",
    "inside/xla_steps.py": "numbers, versions, and XLA_FLAGS of a trial, for the user alone",
    "keep/flight.py": "a request to the ranks, without content",
    "keep/ledger.py": "the ledger, for the user alone; each text is masked by the function that it is given",
    "launch/standard_input.py": "the standard input of the job, in a temporary file for the user alone",
    "launch/witness.py": "/dev/null",
    "nccl_tuner/backends.py": "the table of a candidate",
    "nccl_tuner/measure.py": "what the ranks that measure say",
    "packing/shard.py": "the user's samples and their checksums, with the user's own mode",
    "packing/pack.py": "an empty lock file",
    "plan/run_apart.py": "a pipe",
    "plan/run_calibration.py": "fitted constants",
    "predict/history.py": "predictions and measurements of changes",
    "probe/ceilings/current_benchmark.py": "the number of a benchmark",
    "probe/ceilings/start.py": "what a benchmark's own workers say",
    "probe/ceilings/storage.py": "test data",
    "probe/sampler.py": "samples of hardware counters",
    "profile/finish.py": "torch's trace, compressed",
    "profile/folder.py": "the ID of a run; and the empty file of a host, for the user alone",
    "read/archives.py": "members of the user's archive, in a temporary folder",
    "report/files.py": "devices and pipes that the user names",
    "run/data_cache.py": "the size of all copies in a cache",
    "schedule/live/log.py": "the undo log, for the user alone; its command and what Slurm said are masked",
    "staging/stage.py": "copies of the user's files, with the user's own mode, and an empty lock file",
    "testing/trace_builder.py": "invented traces",
    "track/history_file.py": "results for the user alone; the job's name and what the user adds are masked",
    "trial/journal.py": "a newline after an interrupted line",
    "tune/trial_files.py": "paths of files that trials wrote, and when",
}


CREATING = {"write_text", "write_bytes", "mkstemp", "NamedTemporaryFile", "TemporaryFile", "touch"}
OPENING = {"open", "fdopen"}


def _creating_calls(source: str) -> list[str]:
    """Return the calls that can create a file."""
    if not any(name in source for name in CREATING | OPENING):  # to parse all sources takes seconds
        return []
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _creates(node)]


def _creates(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in CREATING:
        return True
    if name not in OPENING:
        return False
    text = ast.unparse(call)
    if "O_CREAT" in text or "O_WRONLY" in text or "O_RDWR" in text:
        return True
    values = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


@pytest.mark.parametrize(
    "source",
    [
        "path.write_text(shlex.join(command))",
        "path.write_bytes(data)",
        "open(path, 'w').write(x)",
        "path.open('a', encoding='utf-8')",
        "path.open(mode='xb')",
        "os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)",
        "tempfile.NamedTemporaryFile()",
    ],
)
def test_a_writer_is_found(source: str) -> None:
    assert len(_creating_calls(source)) == 1


@pytest.mark.parametrize("source", ["path.open('rb')", "open(path)", "open_private(path, 'w')", "write_private(p, x)"])
def test_a_reader_or_a_private_writer_is_none(source: str) -> None:
    assert _creating_calls(source) == []


def test_a_module_that_creates_files_is_in_the_table() -> None:
    creating = set()
    for path in PACKAGE.rglob("*.py"):
        if _creating_calls(path.read_text(encoding="utf-8")):
            creating.add(str(path.relative_to(PACKAGE)))
    assert creating - WRITERS.keys() == set(), (
        "mask what is written and create it with `write_private`, or add a reason"
    )
    assert WRITERS.keys() - creating == set(), "no longer creates a file in another way"
