"""All readers of Flatout with small valid inputs of each: what the fuzzer damages, and how it has the result read.

In: the samples in `tests/data` and the recordings of `tests/profile/golden`. Out: `READERS`. A reader is called as a
user calls it, through the command line in this process, if a command reads the file and ends; otherwise by its
function.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tests.fuzz import services, trials
from tests.fuzz.samples import Sample
from tests.read.profiles import cpu_plane, gpu_planes, xspace
from tests.read.rocprof_files import horovod, jax_trace, rocprof
from tests.read.sqlite_files import database, nsys_tables, rocpd_tables
from tests.read.test_training_log import LINES
from typer.main import get_command

from flatout.checkpoint.files import write_json
from flatout.cli import app
from flatout.input_files import decode_json, read_lines
from flatout.placement.switches import leaf_switches
from flatout.schedule.live.hostlist import expanded
from flatout.testing import TraceBuilder
from flatout.tune.codec_times import kept_times
from flatout.xla_tuner.trial import read_processes

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data"
OWN = DATA / "readers"
GOLDEN = TESTS / "profile" / "golden"
TRACE = "rank0.json"  # a name that also says the rank


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader: `read` is called with the path of a damaged sample, and `modules` is the code that opens the files."""

    name: str
    samples: Callable[[], list[Sample]]
    read: Callable[[Path], object]
    parameters: tuple[str, ...] = ()  # of the command line, whose files it reads


@cache
def _flatout() -> Any:
    """Return the command `flatout`. Typer takes longer to build it than most commands take to read a small input."""
    return get_command(app)


def run(*arguments: str) -> None:
    """Run a command in this process. What it raises is for the caller."""
    sys.argv = ["flatout", *arguments]
    _flatout()(list(arguments), standalone_mode=False)


def _command(*arguments: str) -> Callable[[Path], object]:
    """Return a call of a command, with the path in place of `{}`."""
    return lambda path: run(*(argument.replace("{}", str(path)) for argument in arguments))


def _node_health(path: Path) -> object:
    from flatout.watch.health.node import NodeQuestion, NodeSources, judge_node

    question = NodeQuestion(job_gpus=64, node_gpus=8, checkpoint_interval_s=3600, restart_s=300, repair_s=3600)
    return judge_node(NodeSources(log=path), question)


def _gpu_history(path: Path) -> object:
    from flatout.watch.health.history import read_history

    return read_history(path)


def _redfish_credentials(path: Path) -> object:
    from flatout.probe.redfish_client import credentials

    if path.is_file():
        path.chmod(0o600)
    return credentials(path, {})


def _sensors_of_ipmitool(path: Path) -> object:
    from flatout.watch.health.bmc_signs import bmc_signs
    from flatout.watch.health.node import read_ipmi

    return bmc_signs(read_ipmi(path))


def _failures_of_ledger(path: Path) -> object:
    from flatout.watch.health.node import num_failures

    return num_failures(path, 2e9)


def _simulated_fabric(path: Path) -> object:
    from flatout.nccl_tuner.command import read_fabric

    return read_fabric(path)


def _served_loads() -> list[Sample]:
    return [_file(OWN / "serving" / name) for name in ("load.toml", "azure.csv", "mooncake.jsonl")]


def _load(path: Path) -> object:
    from flatout.serving.load import read_load
    from flatout.serving.requests import make_requests

    load = read_load(path)
    few = msgspec.structs.replace(load.load, requests=4, prompt_tokens=5, shared_prefix_tokens=0)
    return make_requests(msgspec.structs.replace(load, load=few), 1.0, words_per_token=1e-4)


def _engine(path: Path) -> object:
    from flatout.serving.engine import read_engine

    return read_engine(path)


def _measured_collectives(path: Path) -> object:
    from flatout.nccl_tuner.in_tuning import kept_measurement

    return kept_measurement(path)


def _work_of_recording(path: Path) -> object:
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.nccl_tuner.work import work_of

    return work_of(diagnose_paths([path]).job, 2, "a recording")


def _collective_table(path: Path) -> object:
    from flatout.nccl_tuner.table_file import read_table

    return read_table(path)


def _logged(path: Path) -> object:
    from flatout.run_trackers.result import read_result_record
    from flatout.run_trackers.values import logged_values

    return logged_values(read_result_record(path))


def _settings(path: Path) -> object:
    from flatout.cli.settings import default_map

    return default_map(path, _flatout())


def _pack(path: Path) -> object:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--ranks", "1", "--workers", "1", "--jobs", "1", "--json")
        return run("data", "pack", str(path), f"{folder}/packed", *options)


def _stage(path: Path) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return run("data", "stage", str(path), f"{folder}/copy", "--json")


def _setting_of_pack(path: Path) -> object:
    from flatout.run.packed import packed_setting

    return packed_setting([f"{path}={path.parent}"])


# Samples


def _tables() -> list[Sample]:
    rows = (
        b'{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n{"text": "c", "label": 1}\n{"text": "", "label": 1}\n'
    )
    names = [f"{number}.bin" for number in range(4)]
    table = "path,label,note\n" + "".join(f"{name},dog,x\n" for name in names)
    files = {name: name.encode() for name in names}
    return [
        Sample(files={"rows.jsonl": rows}, given="rows.jsonl"),
        Sample(files={"table.csv": table.encode(), **files}, given="table.csv"),
    ]


@cache
def _pack_of_files() -> Sample:
    from flatout.packing.engines import on_processes
    from flatout.packing.pack import pack
    from flatout.packing.request import PackRequest

    with tempfile.TemporaryDirectory() as folder:
        sample = _tables()[1]
        for name, data in sample.files.items():
            (Path(folder) / name).write_bytes(data)
        source = Path(folder) / sample.given
        request = PackRequest(source=source, folder=Path(folder) / "packed", num_ranks=1, num_workers=1)
        pack(request, lambda tasks: on_processes(tasks, 1))
        return _folder(request.folder)


def _file(path: Path) -> Sample:
    return Sample(files={path.name: path.read_bytes()}, given=path.name)


def _files(folder: str) -> list[Sample]:
    return [_file(path) for path in sorted((OWN / folder).iterdir()) if path.is_file()]


def _folder(path: Path) -> Sample:
    return Sample(
        files={str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
    )


def _one(name: str) -> Callable[[], list[Sample]]:
    return lambda: [_file(OWN / name)]


@cache
def _traces() -> tuple[bytes, bytes]:
    """Return small traces of two ranks, with a collective in each of three steps."""
    texts = []
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2)
        for step in range(3):
            start = 1000 * step
            trace.step(step + 1, start, 900)
            trace.data_loading(start, 100)
            trace.launch("gemm", start + 110, 10, start + 130, 300)
            trace.collective("allreduce", start + 450 + 50 * rank, start + 500, 200, sequence=step)
        texts.append(json.dumps(trace.to_json()).encode())
    return texts[0], texts[1]


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _trace_samples() -> list[Sample]:
    first, second = _traces()
    ranks = {TRACE: first, "rank1.json": second}
    return [
        Sample(files={TRACE: first}, given=TRACE),
        Sample(files={"rank0.json.gz": gzip.compress(first, 1, mtime=0)}, given="rank0.json.gz"),
        Sample(files=ranks),
        Sample(files={"traces.tar": _packed(ranks)}, given="traces.tar"),
        Sample(files={"traces.tar.gz": gzip.compress(_packed(ranks), 1, mtime=0)}, given="traces.tar.gz"),
    ]


def _xplane_samples() -> list[Sample]:
    """Return a profile of one GPU, and a folder of two processes on CPUs as JAX lays it out."""
    return [
        Sample(files={"host.xplane.pb": xspace(*gpu_planes())}, given="host.xplane.pb"),
        Sample(
            files={f"rank{rank}/plugins/profile/now/host.xplane.pb": xspace(cpu_plane(2048 * rank)) for rank in (0, 1)}
        ),
    ]


def _training_logs() -> list[Sample]:
    return [Sample(files={"train.log": "\n".join(lines).encode()}, given="train.log") for lines in LINES.values()]


def _sqlite_samples() -> list[Sample]:
    """Return an export of Nsight Systems with two processes, and databases of rocprofv3 of both schemas."""
    tables = {
        "two.sqlite": nsys_tables((1, 2)),
        "1_results.db": rocpd_tables(),
        "3_results.db": rocpd_tables(has_tracks=True),
    }
    return [Sample(files={name: database(of_file)}, given=name) for name, of_file in tables.items()]


def _other_json_samples() -> list[Sample]:
    """Return JSON of rocprofv3 with two GPUs, a timeline of Horovod with three ranks, and a JSON trace of JAX."""
    contents = {"results.json": rocprof((0, 1)), "timeline.json": horovod(cached_from=2), "jax.json": jax_trace()}
    return [Sample(files={name: json.dumps(content).encode()}, given=name) for name, content in contents.items()]


def _one_trace() -> list[Sample]:
    return _trace_samples()[:1]


@cache
def _recording_of_two() -> Mapping[str, bytes]:
    with tarfile.open(GOLDEN / "fsdp2_short_2xh200.tar.xz") as archive:
        files = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        recording = {name: file.read() for name, file in files.items() if file is not None}
    first, second = _traces()
    return recording | {"rank0.json": first, "rank1.json": second}


def _recording_samples() -> list[Sample]:
    old = _folder(GOLDEN / "of_0_1")
    two = dict(_recording_of_two())
    restarted = two | {f"attempts/1/{name}": data for name, data in two.items() if name.startswith("rank")}
    others = {name: (OWN / "trial" / name).read_bytes() for name in ("failure-node-7.json", "patches-node-7.jsonl")}
    return [old, Sample(files=two | others), Sample(files=restarted)]


def _bundles() -> list[Sample]:
    folder = _folder(OWN / "hosts")
    return [folder]


def _doctor_samples() -> list[Sample]:
    texts = [_file(path) for path in sorted((DATA / "doctor").iterdir()) if path.is_file()]
    return [*_files("doctor"), *texts, _file(OWN / "hosts" / "node-a.json"), _folder(OWN / "copied")]


def _gavel() -> list[Sample]:
    return [Sample(files=_folder(OWN / "gavel").files, given="jobs.trace")]


def _plan_clusters() -> list[Sample]:
    files = {name: (OWN / "plan" / name).read_bytes() for name in ("with_bench.toml", "bench.json")}
    return [_file(OWN / "plan" / "own.toml"), Sample(files=files, given="with_bench.toml")]


# Calls of functions, where a command would start a job or ask a scheduler


def _undo_log(path: Path) -> None:
    from flatout.schedule.live.log import LogFile, read_log

    read_log(path, cluster="lab")
    with LogFile(path, cluster="lab", command=["flatout"]):
        pass


def _slurm_usage(path: Path) -> None:
    from flatout.schedule.live.usage import read_samples

    read_samples(str(path), now_unix_s=1_000_000.0, window_s=1e9)


def _slurm_history(path: Path) -> None:
    from flatout.schedule.live.enrich import ended_jobs

    ended_jobs(path, None, lambda line: None)  # type: ignore[arg-type]  # the file is given, so Slurm is not asked


def _trial_folder(path: Path) -> None:
    from flatout.profile.read_facts import read_facts
    from flatout.records.change import ChangeSet
    from flatout.trial.data import check_data
    from flatout.trial.gradients import read_gradients, read_start
    from flatout.trial.model_outputs import read_model_outputs
    from flatout.trial.outputs import settle_outputs
    from flatout.trial.patches import unapplied
    from flatout.trial.result import _failures, error_line

    read_start(path, 2)
    read_gradients(path, 2)
    read_model_outputs(path)
    settle_outputs(path, path / "saved")
    unapplied(path, ChangeSet())
    check_data(path, 2)
    _failures(path)
    error_line(path / "output.log")
    if (path / "recording.json").is_file():
        read_facts(path)


def _blocks(path: Path) -> None:
    from flatout.profile import read_recording
    from flatout.trial.blocks import read_blocks
    from flatout.verdict.blocks import judge_blocks

    blocks = read_blocks(read_recording(path))
    for arm in {block.arm for block in blocks} - {"baseline"}:
        judge_blocks(blocks, arm)


def _trial_samples() -> list[Sample]:
    files = _folder(OWN / "trial").files
    return [Sample(files=files), Sample(files=dict(_folder(GOLDEN / "of_0_1").files) | dict(files))]


def _journal(path: Path) -> None:
    from flatout.trial.journal import Heading, Journal

    heading = Heading(tool_version="0.1.0", command=("python", "train.py"), options={})
    with suppress(OSError, msgspec.DecodeError):
        heading = decode_json(next(read_lines(path), b""), Heading)
    Journal(path, heading, may_replace=False)


def _tuning_folder(path: Path) -> None:
    from flatout.records.tuning import Separation
    from flatout.trial.separation import read_refusal
    from flatout.tune.files import _finished, former_date
    from flatout.tune.trial_files import TrialFiles

    former_date(path)
    _finished(path)
    TrialFiles(path, Separation(), {})
    read_refusal(path / "runs" / "trial-000")


def _tunings() -> list[Sample]:
    """Return the folder of a tuning with the notes about its trials' files."""
    written = {"files": {"/data/cache.bin": [1795976911466453121, "trial 0"]}}
    notes = {"runs/written.json": json.dumps(written).encode(), "runs/trial-000/refusal": b"mount: not permitted\n"}
    return [Sample(files={**_folder(TESTS / "tune" / "golden" / "of_0_1").files, **notes})]


def _history(path: Path) -> None:
    from flatout.predict.history import read_history
    from flatout.tune.files import learned

    read_history(path)
    learned(path)


def _ledger_continued(path: Path) -> None:
    from flatout.keep.ledger import LedgerFile
    from flatout.keep.ledger_merge import open_own
    from flatout.keep.previous_runs import JobStart, _previous_runs_in

    _previous_runs_in(path, JobStart(job="slurm-7", number=2), "n1", None)
    LedgerFile(path).close()
    file, _ = open_own(path, "n1")
    file.close()


def _checkpoint_log(path: Path) -> None:
    from flatout.keep.interval_choice import _committed

    _committed(path)


def _weights() -> list[Sample]:
    """Return a folder of Hugging Face with two tensors, as the format of safetensors has them."""
    tensors = {"a": ("F32", [2, 2], 16), "b": ("BF16", [3], 6)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, shape, size) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(range(end))
    return [
        Sample(files={"model.safetensors": weights, "config.json": b'{"torch_dtype": "float32", "hidden_size": 2}'})
    ]


def _bf16_weights(path: Path) -> None:
    from flatout.compress.folder_files import bf16_folder
    from flatout.compress.onnx_files import NotMadeError

    with tempfile.TemporaryDirectory() as folder, suppress(NotMadeError):
        bf16_folder(path, Path(folder) / "made")


def _run_state(path: Path) -> None:
    from tests.keep.test_hang import pulse

    from flatout.keep.evidence import read_failures
    from flatout.keep.exits import _crash, _last_lines, _reports
    from flatout.keep.job_identity import JobIdentity
    from flatout.keep.other_runs import read_about as _read
    from flatout.keep.peer_board import PeerBoard
    from flatout.keep.stacks import loader_stacks
    from flatout.run.saves import read_saves, report_saves

    for failure in read_failures(path):
        assert failure.errors
    _reports(path)
    rank = pulse(0)
    _crash(path, rank)
    _last_lines(path, rank)
    _read(path)
    loader_stacks(path, rank)
    report_saves(read_saves(path))
    identity = JobIdentity(name="j", spans_nodes=True, node_key="k", job_key="j")
    board = PeerBoard(path, "node-a", identity)
    board.look(lambda: ())
    board.others()


_FORMATS = ("junit", "github", "markdown", "bmf", "benchmark-action")


def _exported_in_all_formats(path: Path) -> None:
    for name in _FORMATS:
        run("track", "export", str(path), "--job", "a", "--machine", "b", "--format", name)


def _checked_in_all_formats(path: Path) -> None:
    for name in _FORMATS:
        run("track", "check", str(path), "--gate", "3%", "--undecided", "pass", "--format", name)


def _saved_ceilings(path: Path) -> None:
    from flatout.probe.ceilings.saved import load_ceilings

    load_ceilings(path)


def _scripted_checkpoint(path: Path) -> None:
    from flatout.checkpoint.scripted import latest_good

    latest_good(path / "ckpt.pt")


@cache
def _scripted() -> Sample:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"x" * 300)
    saved = buffer.getvalue()
    size = {"bytes": len(saved), "crc32": zlib.crc32(saved)}
    checksums = json.dumps({"files": [size]}).encode()
    return Sample(files={"ckpt.pt": saved, "ckpt.pt.previous": saved, "ckpt.pt.checksums": checksums})


_OF_CHECKPOINTS = ("flatout run --checkpoint", "flatout submit --checkpoint")


def _training(folder: Path) -> Any:
    """Return a checkpointer of a small training, which writes into `folder`."""
    import torch

    from flatout.checkpoint import Checkpointer

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return Checkpointer(folder, model=model, optimizer=optimizer)


@cache
def _checkpoints() -> Sample:
    """Return two checkpoints, of which the first stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        with _training(Path(folder)) as checkpointer:
            for step in (1, 2):
                checkpointer.save(step, wait=True)
        files = {name: data for name, data in _folder(Path(folder)).files.items() if name.startswith("step-")}
    return Sample(files=files, fixed=frozenset(name for name in files if name.startswith(_GOOD)))


_GOOD, _OTHER = "step-000000001/", "step-000000002"


def _resume(path: Path) -> None:
    with _training(path) as checkpointer:
        step = checkpointer.resume()
    assert step in (1, 2), f"resumed from step {step}"


def _resume_from_altered(path: Path) -> None:
    """Resume from a checkpoint whose checksums are those of its files, as of one that was altered with intent."""
    folder = path / _OTHER
    for file in sorted(folder.glob("rank*.json")):
        _seal(file, {})
    files = [file for file in folder.glob("rank*") if file.is_file()]
    sizes = {file.name: {"bytes": file.stat().st_size, "crc32": zlib.crc32(file.read_bytes())} for file in files}
    _seal(folder / "manifest.json", sizes)
    _resume(path)


def _seal(file: Path, sizes: Mapping[str, Any]) -> None:
    with suppress(OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        if not file.is_file() or file.is_symlink():
            return
        content = json.loads(file.read_bytes())
        content.pop("checksum", None)
        for name, size in sizes.items():
            if name in content["files"]:
                content["files"][name] = size
        write_json(file, content)


_TUNED = OWN / "tuned.toml"


def _canary_note() -> bytes:
    note = {"schema": "flatout/canary", "version": 1, "ledger": "missing.jsonl", "submitted_unix_s": 1.0}
    return json.dumps(note | {"tuning": hashlib.sha256(_TUNED.read_bytes()).hexdigest()}).encode()


def _canary(path: Path) -> None:
    from flatout.submit.canary import canary_of

    canary_of(path / "tuned.toml", path / "ledger.jsonl")


_PLAN = ("plan", "--global-batch", "64", "--seq", "2048", "--top", "1")
_LAYOUT = ("tp=2", "pp=1", "cp=1", "zero=1", "micro_batch=1", "recompute=none", "schedule=1f1b", "sp=on")
_FIXED = tuple(word for layout in _LAYOUT for word in ("--fix", layout))
_REPLAY = ("schedule", "replay", "--nodes", "4", "--gpus-per-node", "8")

XLA_STEPS = b"""{"facts": {"platform": "cpu", "devices": 1}}
{"mark": 0, "s": 1.5, "counted_from": 0}
{"loss": 2.5, "mark": 0}
{"mark": 1, "s": 1.75, "counted_from": 0}
"""
READERS: tuple[Reader, ...] = (
    Reader("diagnose", _trace_samples, _command("diagnose", "{}"), ("flatout diagnose paths",)),
    Reader("diagnose an XPlane", _xplane_samples, _command("diagnose", "{}")),
    Reader("diagnose SQLite", _sqlite_samples, _command("diagnose", "{}")),
    Reader("diagnose JSON of others", _other_json_samples, _command("diagnose", "{}")),
    Reader("diagnose --perfetto", _one_trace, _command("diagnose", "{}", "--perfetto", "{}.out", "--force")),
    Reader("diagnose a recording", _recording_samples, _command("diagnose", "{}")),
    Reader(
        "diagnose --ceilings",
        lambda: [Sample(files=_recording_of_two() | {"ceilings.json": (OWN / "ceilings.json").read_bytes()})],
        lambda path: run("diagnose", str(path), "--ceilings", str(path / "ceilings.json")),
        ("flatout diagnose --ceilings", "flatout bench --whole"),
    ),
    Reader(
        "data show",
        lambda: [_folder(OWN / "loading")],
        lambda path: [run("data", "show", str(path), *options) for options in ((), ("--json",))],
        ("flatout data show folder",),
    ),
    Reader(
        "data cache",
        lambda: [_folder(OWN / "data_cache")],
        lambda path: [run("data", "cache", str(path), *options) for options in ((), ("--json",))],
        ("flatout data cache folder",),
    ),
    Reader(
        "flatout.toml",
        lambda: [
            Sample({"flatout.toml": b'[tune]\nbudget = "20m"\nblocks = true\n[tune.nccl]\nranks = 2\n'}, "flatout.toml")
        ],
        _settings,
    ),
    Reader(
        "index",
        lambda: [Sample(files={"diagnosis.json": (OWN / "diagnosis.json").read_bytes()})],
        lambda path: run("index", str(path), "--json"),
        ("flatout index folder",),
    ),
    Reader("log", _one("diagnosis.json"), _logged, ("flatout log result",)),
    Reader("data pack", _tables, _pack, ("flatout data pack source",)),
    Reader(
        "data verify",
        lambda: [_pack_of_files()],
        lambda path: [run("data", "verify", str(path), *options) for options in ((), ("--json", "--ranks", "2"))],
        ("flatout data verify folder",),
    ),
    Reader("data stage", lambda: [_pack_of_files()], _stage, ("flatout data stage source",)),
    Reader("run --packed", lambda: [_pack_of_files()], _setting_of_pack),
    Reader("bench, saved", _one("ceilings.json"), _saved_ceilings),
    Reader("diff", _one("diagnosis.json"), _command("diff", "{}", "{}"), ("flatout diff before", "flatout diff after")),
    Reader(
        "compare",
        lambda: [_file(OWN / "diagnosis.json"), _one_trace()[0], *_recording_samples()],
        _command("compare", "{}", "{}"),
    ),
    Reader("compare, its folder", trials.comparisons, trials.judge_comparison),
    Reader("explain --error", _one("error.log"), _command("explain", "--error", "{}"), ("flatout explain --error",)),
    Reader("watch node --log", _one("xids.log"), _node_health, ("flatout watch node --log",)),
    Reader("watch node --ipmi", _one("sdr.txt"), _sensors_of_ipmitool, ("flatout watch node --ipmi",)),
    Reader(
        "watch node --redfish-credentials",
        _one("redfish_credentials.txt"),
        _redfish_credentials,
        ("flatout watch node --redfish-credentials", "flatout doctor --redfish-credentials"),
    ),
    Reader("watch node --redfish, its answers", services.redfish, services.read_bmc),
    Reader("schedule slurm --usage, Prometheus", services.prometheus, services.read_prometheus),
    Reader("tune --serve, its server", services.servers, services.read_server),
    Reader("watch node --history", _one("gpu_history.jsonl"), _gpu_history, ("flatout watch node --history",)),
    Reader("watch node --ledger", _one("node_ledger.jsonl"), _failures_of_ledger, ("flatout watch node --ledger",)),
    Reader("doctor --from", _doctor_samples, _command("doctor", "--from", "{}"), ("flatout doctor --from",)),
    Reader(
        "doctor --topology",
        lambda: _files("doctor"),
        _command("doctor", "--from", str(OWN / "hosts" / "node-a.json"), "--topology", "{}"),
        ("flatout doctor --topology",),
    ),
    Reader(
        "doctor --nccl-log",
        lambda: [_file(OWN / "doctor" / "nccl.log"), _file(DATA / "doctor" / "h100vm_rank0.log")],
        _command("doctor", "--from", str(OWN / "hosts" / "node-a.json"), "--nccl-log", "{}"),
        ("flatout doctor --nccl-log",),
    ),
    Reader(
        "doctor --hosts",
        lambda: [_folder(OWN / "hosts")],
        lambda path: run("doctor", "--hosts", *map(str, sorted(path.iterdir()))),
        ("flatout doctor bundles",),
    ),
    Reader(
        "doctor --recording",
        _recording_samples,
        _command("doctor", "--from", str(OWN / "hosts" / "node-a.json"), "--recording", "{}"),
        ("flatout doctor --recording",),
    ),
    Reader(
        "ledger",
        lambda: [_file(TESTS / "keep" / "golden" / "of_0_1.jsonl")],
        _command("ledger", "{}"),
        ("flatout ledger paths",),
    ),
    Reader(
        "track add",
        lambda: [*_files("results"), _file(OWN / "ceilings.json"), _file(OWN / "diagnosis.json"), *_training_logs()],
        lambda path: run("track", "add", f"{path}.history", str(path), "--job", "a", "--machine", "b"),
        ("flatout track add results",),
    ),
    Reader(
        "track export",
        lambda: _files("results"),
        _exported_in_all_formats,
        ("flatout track export result",),
    ),
    Reader(
        "track add, to a history",
        _one("track.jsonl"),
        lambda path: run("track", "add", str(path), str(OWN / "results" / "tuning.json"), "--machine", "b"),
        ("flatout track add history",),
    ),
    Reader(
        "track check",
        _one("track.jsonl"),
        _command("track", "check", "{}", "--html", "{}.html", "--force"),
        ("flatout track check history",),
    ),
    Reader(
        "track check --format",
        _one("track.jsonl"),
        _checked_in_all_formats,
    ),
    Reader("track show", _one("track.jsonl"), _command("track", "show", "{}"), ("flatout track show history",)),
    Reader(
        "run --ledger",
        lambda: [_file(TESTS / "keep" / "golden" / "of_0_1.jsonl")],
        _ledger_continued,
        ("flatout run --ledger", "flatout submit --ledger"),
    ),
    Reader("compress, weights", _weights, _bf16_weights),
    Reader("run, its state", lambda: [_folder(OWN / "state")], _run_state),
    Reader(
        "run, its checkpoints",
        _one("checkpoints.jsonl"),
        _checkpoint_log,
        ("flatout run --checkpoint-folder", "flatout submit --checkpoint-folder"),
    ),
    Reader(
        "submit --config",
        _one("tuned.toml"),
        _command(
            "submit",
            "--dry-run",
            "--to",
            "kubernetes",
            "--image",
            "a",
            "--gpus",
            "8",
            "--config",
            "{}",
            "--",
            "python",
            "x.py",
        ),
        ("flatout submit --config", "flatout run --config"),
    ),
    Reader(
        "submit --canary, its note",
        lambda: [Sample(files={"tuned.toml": _TUNED.read_bytes(), "tuned.toml.canary.json": _canary_note()})],
        _canary,
    ),
    Reader(
        "submit --plan",
        _one("plan.json"),
        _command("submit", "--dry-run", "--to", "kubernetes", "--image", "a", "--plan", "{}", "--", "python", "x.py"),
        ("flatout submit --plan",),
    ),
    Reader(
        "submit --kube-nodes",
        lambda: [_file(OWN / f"kubernetes_nodes.{kind}") for kind in ("json", "toml")],
        _command(
            "submit", "--dry-run", "--to", "kubernetes", "--gpus", "2", "--kube-nodes", "{}", "--", "python", "x.py"
        ),
        ("flatout submit --kube-nodes", "flatout schedule kubernetes --kube-nodes"),
    ),
    Reader(
        "submit --spot-trace",
        lambda: _files("spot"),
        _command(
            *(
                "submit",
                "--dry-run",
                "--to",
                "slurm",
                "--gpus",
                "8",
                "--resume",
                "--partition",
                "b",
                "--gpu-type",
                "h100",
            ),
            *(
                "--spot-trace",
                "{}",
                "--work-hours",
                "1",
                "--deadline",
                "3h",
                "--spot-partition",
                "a",
                "--",
                "python",
                "x.py",
            ),
        ),
        ("flatout submit --spot-trace",),
    ),
    Reader(
        "plan --model",
        lambda: [
            _file(OWN / "plan" / name)
            for name in (
                *("config.json", "moe.json", "hybrid.json", "vision.json", "encoder_decoder.json", "windows.json"),
            )
        ],
        _command(*_PLAN, *_FIXED, "--cluster", "h100x16", "--model", "{}"),
    ),
    Reader("plan --cluster", _plan_clusters, _command(*_PLAN, *_FIXED, "--model", "llama3-8b", "--cluster", "{}")),
    Reader(
        "plan --calibrate",
        lambda: [_file(OWN / "plan" / "runs.csv"), _file(OWN / "plan" / "bench.json")],
        _command(*_PLAN, "--fix", "tp=2", "--model", "llama3-8b", "--cluster", "h200x2", "--calibrate", "{}"),
        ("flatout plan --calibrate",),
    ),
    Reader(
        "plan --prices",
        _one("prices.toml"),
        _command(
            *_PLAN, *_FIXED, "--model", "llama3-8b", "--cluster", "h100x16", "--goal", "1B tokens", "--prices", "{}"
        ),
        (
            "flatout plan --prices",
            "flatout cost jobs --prices",
            "flatout cost power-cap --prices",
            "flatout cost buy --prices",
            "flatout cost spot --prices",
        ),
    ),
    Reader(
        "plan place --switches",
        lambda: [_file(OWN / "plan" / "topology.conf")],
        lambda path: leaf_switches(path, ("n1", "n2", "n3", "n4"), expanded),  # the command plans for a second first
        ("flatout plan place --switches",),
    ),
    Reader(
        "plan evaluate",
        lambda: [_file(OWN / "plan" / "runs.csv")],
        _command("plan", "evaluate", "{}", "--shipped"),
        ("flatout plan evaluate runs",),
    ),
    Reader(
        "schedule replay",
        lambda: [*_files("history"), *_files("sacct")],
        _command(*_REPLAY, "{}", "--policy", "fifo"),
        ("flatout schedule replay jobs",),
    ),
    Reader(
        "schedule replay, of Gavel",
        _gavel,
        _command("schedule", "replay", "{}", "--cluster", str(OWN / "gavel_cluster.toml"), "--policy", "fifo"),
    ),
    Reader(
        "schedule replay --policy flatout",
        lambda: _files("history"),
        _command(*_REPLAY, "{}", "--policy", "flatout"),
    ),
    Reader(
        "schedule replay --cluster",
        _one("cluster.toml"),
        _command("schedule", "replay", str(OWN / "history" / "plain.csv"), "--policy", "fifo", "--cluster", "{}"),
        ("flatout schedule replay --cluster",),
    ),
    Reader("schedule slurm --history", _one("sacct/short.psv"), _slurm_history, ("flatout schedule slurm --history",)),
    Reader("schedule slurm --usage", lambda: [_file(OWN / "usage.jsonl"), _folder(GOLDEN / "of_0_1")], _slurm_usage),
    Reader(
        "schedule slurm --log",
        _one("undo.jsonl"),
        _undo_log,
        ("flatout schedule slurm --log", "flatout schedule undo log"),
    ),
    Reader(
        "schedule kubernetes",
        _one("teams.toml"),
        _command("schedule", "kubernetes", "{}"),
        ("flatout schedule kubernetes teams",),
    ),
    Reader(
        "cost jobs",
        lambda: [*_files("sacct"), *_recording_samples()],
        _command("cost", "jobs", "{}"),
        ("flatout cost jobs paths",),
    ),
    Reader(
        "cost jobs --usage",
        _one("usage.csv"),
        _command("cost", "jobs", str(OWN / "sacct" / "slurm.psv"), "--usage", "{}"),
        ("flatout cost jobs --usage",),
    ),
    Reader(
        "cost buy",
        _one("ownership.toml"),
        _command("cost", "buy", "{}"),
        ("flatout cost buy ownership",),
    ),
    Reader(
        "cost power-cap",
        _one("curve.csv"),
        _command("cost", "power-cap", "{}", "--gpu-type", "h100"),
    ),
    Reader(
        "schedule replay --sharing",
        _one("sharing.json"),
        _command(*_REPLAY, str(OWN / "history" / "openb.csv"), "--sharing", "{}"),
        ("flatout schedule replay --sharing",),
    ),
    Reader(
        "cost carbon",
        _one("hours.csv"),
        _command("cost", "carbon", "{}", "--takes", "90m", "--power", "700"),
        ("flatout cost carbon hours",),
    ),
    Reader(
        "cost spot",
        lambda: _files("spot"),
        _command(
            "cost",
            "spot",
            "{}",
            "--work-hours",
            "1",
            "--deadline",
            "3h",
            "--gpu-type",
            "v100",
            "--gpu-price",
            "2",
            "--spot-price",
            "0.5",
        ),
        ("flatout cost spot trace",),
    ),
    Reader("table of collectives", _one("collective_table.txt"), _collective_table),
    Reader(
        "tune jax, a trial",
        lambda: [Sample(files={"0.jsonl": XLA_STEPS})],
        read_processes,
    ),
    Reader("tune nccl --fabric", _one("fabric.toml"), _simulated_fabric, ("flatout tune nccl --fabric",)),
    Reader("tune --serve --load", _served_loads, _load, ("flatout tune --serve --load",)),
    Reader("tune --serve --engine", lambda: [_file(TESTS / "serving" / "fake.toml")], _engine),
    Reader("tune nccl --recording", _trace_samples, _work_of_recording, ("flatout tune nccl --recording",)),
    Reader("tune nccl, its result", _one("nccl.json"), _measured_collectives),
    Reader("checkpoints", lambda: [_checkpoints()], _resume),
    Reader("checkpoints, altered", lambda: [_checkpoints()], _resume_from_altered),
    Reader("checkpoint of a script", lambda: [_scripted()], _scripted_checkpoint, _OF_CHECKPOINTS),
    Reader("tune, its journal", lambda: [_file(TESTS / "tune" / "golden" / "of_0_1" / "journal.jsonl")], _journal),
    Reader("tune, its verdicts", trials.journals, trials.judge_tuning),
    Reader("tune, its folder", _tunings, _tuning_folder),
    Reader("tune, its history", _one("history.jsonl"), _history),
    Reader("tune, its times of codecs", lambda: [Sample(files={"codec_times.json": b'{"bf16": 0.6}'})], kept_times),
    Reader("tune, its trials", _trial_samples, _trial_folder),
    Reader("tune, its blocks", lambda: [_folder(OWN / "blocks")], _blocks),
)
