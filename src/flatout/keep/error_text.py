"""Parse the text of a failure: a traceback, a log, or one message -> `RaisedError`s, the original cause first.

Texts of several ranks are separated by the prefixes that launchers write. Before a text is compared with the table of
known failures, `without_names` removes the names of the job's data: quoted strings, URLs and paths. This module does
not judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from flatout.catalog.failures import Phase, is_exception_type
from flatout.input_files import bounded_log

_MAX_LINES = 5_000  # length of the part of a log, from its end, that is parsed
_MAX_MESSAGE_LINES = 60

# Prefixes that launchers write before each line of a rank: torchrun, srun -l, Horovod, Ray.
_RANK_PREFIX = re.compile(
    r"^(?:\[(?:rank|default)\d+\]:\s?|\d{1,5}:\s|\[\d+(?:,\d+)?\]<std(?:err|out)>:\s?"
    r"|\(\w+ pid=\d+(?:, ip=[\d.]+)?\)\s)+"
)
# The runtime of C++ announces an exception; its text, on the next line, says what happened.
_ABORTED_WITH_TEXT = re.compile(r"[^\n]*terminate called after throwing an instance of[^\n]*\n(?=[^\n]*\bwhat\(\):)")
# A bar of tqdm stays before what is written next: `50%|##### | 908/2500 [11:18<19:50, 1.34it/s]Error: ...`.
_BAR = re.compile(r"^[^\n]*?\d{1,9}/(?:\d{1,9}|\?) \[\d[\d:]{0,20}<[^\]\n]{0,200}\]:?[ \t]*(?=\S)", re.MULTILINE)
_COMMAND = re.compile(
    r"\bCommand '\[?'?(?:[\w.-]*/)*(ssh|pdsh|srun|nvcc|ninja|nvidia-smi)(?![\w.-])[^\n']*(?:'[^\n]*\]')?'?"
)
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TRACEBACK = re.compile(r"^\s*(?:Original )?Traceback \(most recent call last\):")
_CHAINED = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
# The name of an exception, with its module, then its message: of the usual forms, of the table, or after a traceback.
_EXCEPTION = re.compile(
    r"^\s*(?:[A-Za-z_]\w*\.)*"
    r"(_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Refused|Failure|Unavailable|Unsupported|Disconnected|NoSuchKey|NoSuchBucket)"
    r"|Unsupported|ReadTimeout|Timeout|(?<=\.)(?:timeout|error)|IncompleteRead|RayTaskError|gaierror|herror|BadZipFile|BrokenProcessPool|SSLError|Exception)"
    r"(?:\(\w+\))?(?::(?:\s+(.*))?|\s*)$"
)
_NAMED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*):\s+(.*)$")
# Lines of programs around the job, which do not belong to the message above them.
_LOG_LINE = re.compile(
    r"^\s*(?:srun:|slurmstepd|NVRM:|\[\s*\d+\.\d+\]|\[?[EWIF]\d{4} |\[[EWI] |\[?\d{4}-\d\d-\d\d|terminate called)"
)
# Words after which another error's own message follows on the same line.
_INTRODUCES = re.compile(r"(terminated with exception|failure was|Original exception|raised|Last error)\s*:\s*(?=\S)")
_WRITTEN_OUT = ("\\n", "\n"), ("\\t", "\t")

_ROOT_CAUSE = "Root Cause (first observed failure):"

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+")
# Informative even in quotes: the path of a device, and the constants of GPU libraries.
_KEPT = r"(?!/dev/|(?:hip|cuda)Error|CUDA_ERROR_|HSA_STATUS_)"
_QUOTED = re.compile(rf"(?<!\w)'{_KEPT}[^'\n]*'(?!\w)|\"{_KEPT}[^\"\n]*\"|`[^`\n]*`")
_CUDA_QUOTE = re.compile(r"((?:Cuda|CUDA|NCCL) (?:failure|error)(?: \d+)?)(?: \S+:\d+)? '([^'\n]*)'")
_THROWN = re.compile(r'(\bexception with description )"([^"\n]*)"')  # what a program in C++ says of an exception
# What a program of Kubernetes or another one in Go says: `E0522 10:32:28 1 a.go:3] "Pod failed" err="timed out"`.
# An event of Kubernetes says `failed with reason: "Evicted", message: "The node was low on resource"`.
_LOGGED = re.compile(
    r'(^[EWIF]\d{4} [^\]\n]*\] |\b(?:err|error|msg|reason)=|\bwith reason: |, message: )"([^"\n]*)"', re.MULTILINE
)
_JAX_TASK = re.compile(r"/job:\w+/replica:\d+/task:(\d+)")
_NATIVE_SOURCE = re.compile(r"(?:[^\s\[\](]*/)?([\w.-]+\.(?:cc|cpp|hpp|cu|cuh|h)(?::\d+)?)(?![\w/])")
_SYSTEM_PATHS = ("/dev/shm", "/dev/infiniband", "/dev/nvidia")
_ABSOLUTE_PATH = re.compile(r"(?<![\w/])(?:~|\.{1,2})?/[^\s'\",;:()\[\]<>|]+")
_RELATIVE_PATH = re.compile(r"(?<![\w/<])(?!HTTP/\d)[\w.-]+/[\w./-]*\.\w{1,12}\b|(?<![\w/<])[\w.-]+(?:/[\w.-]+){2,}")

_FRAME = re.compile(r"^\s+File \".*\", line \d+")
_FRAME_CHARACTERS = 400
# Calls whose "No space left on device" is about /dev/shm, whatever the file is called.
_SHARED_MEMORY_FRAME = re.compile(
    r"SemLock\(|_posixshmem|\bSharedMemory\(|_new_shared\(|_share_(?:filename|fd)_|shm_open|shared_memory\.py"
    r"|in rebuild_storage_filename"
)
_NO_SPACE = re.compile(r"\[Errno 28\]|No space left on device")
_TRAINING_FRAME = re.compile(
    r"\bin (?:backward|training_step|train_step|train_one_epoch|train_epoch|_inner_training_loop|optimizer_step)\b"
    r"|\.backward\(|\b(?:optimizer|optim|opt)\.step\("
)
# What only a job that trains writes: the speed of a bar, a loss, the number of a step, of an epoch or of a collective.
_PROGRESS = re.compile(
    r"\d(?:it/s|s/it)\b|\b(?:loss|Loss|global_step|step|Epoch|epoch)[ =:]{1,3}\[?\d|\bSeqNum=\d\d|\bconsumed samples:"
)
_START_FRAME = re.compile(
    r"\bin (?:init_process_group|from_pretrained|load_state_dict|parse_args|_load_from_checkpoint"
    r"|initialize_distributed)\b"
)


class RaisedError(msgspec.Struct, frozen=True, kw_only=True):
    """One exception, or one line of a log, whose `exception` is empty."""

    exception: str  # the type, without its module
    message: str


def errors_in(text: str) -> list[RaisedError]:
    """Return the exceptions in a text, the first one first, then its other lines."""
    streams = _by_rank(_plain(text))
    exceptions: list[RaisedError] = []
    lines: list[str] = []
    for stream in streams:
        of_stream, others = _exceptions_in(stream)
        exceptions += of_stream
        lines += others
    distinct_lines = dict.fromkeys(line.strip() for line in lines if line.strip())
    return exceptions + [RaisedError(exception="", message=line) for line in distinct_lines]


def phase_in(text: str) -> Phase | None:
    """Return the phase that the frames of a traceback or signs of progress show; None if they show none."""
    if _TRAINING_FRAME.search(text):
        return "training"
    if _START_FRAME.search(text):
        return "start"
    return "training" if _PROGRESS.search(text) else None


def without_names(message: str) -> str:
    """Return the message without quoted strings, URLs and paths, which can contain any word."""
    text = _THROWN.sub(r"\1\2", _CUDA_QUOTE.sub(r"\1 \2", message))
    text = _LOGGED.sub(r"\1\2", text)
    text = _COMMAND.sub(r"Command \1 <name>", text)
    text = _JAX_TASK.sub(r"task \1", text)
    text = _URL.sub("<url>", text)
    text = _QUOTED.sub("<name>", text)
    text = _NATIVE_SOURCE.sub(_short_source, text)
    text = _ABSOLUTE_PATH.sub(_short_path, text)
    text = _RELATIVE_PATH.sub("<path>", text)
    return _INTRODUCES.sub("\\1:\n", text)


def _plain(text: str) -> list[str]:
    """Return the last lines of a text, without a terminal's codes."""
    if "\n" not in text.strip():  # as a table or a JSON string has it
        for written_out, character in _WRITTEN_OUT:
            text = text.replace(written_out, character)
    text = bounded_log(_TERMINAL.sub("", text).replace("\r", "\n"))
    text = _BAR.sub("", _ABORTED_WITH_TEXT.sub("", text))
    lines = text.splitlines()
    return lines[-_MAX_LINES:]


def _by_rank(lines: Iterable[str]) -> list[list[str]]:
    """Separate the lines of ranks by their prefix, which is removed."""
    streams: dict[str, list[str]] = {}
    for line in lines:
        prefix = _RANK_PREFIX.match(line)
        name = prefix[0].strip() if prefix is not None else ""
        streams.setdefault(name, []).append(line[prefix.end() :] if prefix is not None else line)
    return list(streams.values())


def _exceptions_in(lines: list[str]) -> tuple[list[RaisedError], list[str]]:
    """Return the exceptions, each with the lines that belong to its message, and the lines that belong to none."""
    exceptions: list[RaisedError] = []
    others: list[str] = []
    message: list[str] | None = None  # of the exception that was read last
    exception = ""
    is_in_frames = False
    frame = ""  # the last lines of the traceback that was read last

    def finish() -> None:
        if message is not None:
            text = "\n".join(message).strip()
            _, _, root_cause = text.rpartition(_ROOT_CAUSE)  # of torchrun's report on all ranks
            exceptions.append(RaisedError(exception=exception, message=root_cause))

    for line in lines:
        if _TRACEBACK.match(line):
            is_in_frames = True
            continue
        match = _EXCEPTION.match(line) or _named(line, is_in_frames=is_in_frames)
        is_frame = line[:1].isspace() or not line
        if match is None and is_frame and (is_in_frames or _FRAME.match(line)):
            is_in_frames = True
            frame = f"{frame}\n{line}"[-_FRAME_CHARACTERS:]
            continue  # a frame, or a line of source code
        if match is not None:
            finish()
            exception, message = match[1], [_with_place(match[2] or "", frame)]
            frame = ""
            is_in_frames = False
            continue
        is_in_frames = False
        if message is not None and _continues(line, message):
            message.append(line)
            continue
        finish()
        message = None
        others.append(line)
    finish()
    return exceptions, others


def _with_place(message: str, frame: str) -> str:
    """Return the message with /dev/shm, if the call that raised it shows that no space was left there."""
    is_of_shared_memory = _NO_SPACE.search(message) is not None and _SHARED_MEMORY_FRAME.search(frame) is not None
    return f"{message}: /dev/shm" if is_of_shared_memory else message


def _named(line: str, *, is_in_frames: bool) -> re.Match[str] | None:
    """Return the match of an exception whose name has no usual form: one of the table, or any after a traceback.

    A warning is a line like any other, because the program goes past it.
    """
    match = _NAMED.match(line)
    if match is None or match[1].endswith("Warning"):
        return None
    return match if is_in_frames or is_exception_type(match[1]) else None


def _continues(line: str, message: list[str]) -> bool:
    is_another = _LOG_LINE.match(line) is not None or _CHAINED.match(line) is not None
    return not is_another and len(message) < _MAX_MESSAGE_LINES


def _short_source(match: re.Match[str]) -> str:
    """Keep the file and line of native code: they show which library wrote the message."""
    library = "gloo " if "gloo" in match[0] else ""
    return f"<{library}{match[1]}>"


def _short_path(match: re.Match[str]) -> str:
    system = next((path for path in _SYSTEM_PATHS if match[0].startswith(path)), None)
    if system is not None:
        return system
    if match[0].endswith("/slurm_script"):  # the job's script in the spool of a node: never a name of the user's
        return "slurm_script"
    return match[0] if match[0].startswith("/torch_") else "<path>"
