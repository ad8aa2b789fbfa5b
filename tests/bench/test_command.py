"""`flatout bench` as a user calls it, on the CPU: what it measures, saves, refuses and calls wrong."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.bench.bench_command import SMALL, bench, content, injected, small
from tests.slurm import SlurmLab

from flatout.bench_pipeline import choose_num_ranks
from flatout.errors import InputError, UsageError
from flatout.probe.ceilings.names import NAMES
from flatout.probe.ceilings.raw import About
from flatout.probe.ceilings.start import given_rank
from flatout.probe.ceilings.storage import storage_benchmarks

pytestmark = pytest.mark.usefixtures("warm")


def files_of_a_user(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    (data / "shard.bin").write_bytes(os.urandom(1 << 20) * 80)
    for number in range(200):
        (data / f"{number}.txt").write_bytes(b"x" * 3000)
    return data


def test_everything_that_a_cpu_has_is_measured_and_saved(tmp_path: Path) -> None:
    """As on a machine with 256 MiB of free memory; `test_warming.py` has the rounds of a user."""
    data, out = files_of_a_user(tmp_path), tmp_path / "out.json"
    before = {path: path.stat().st_mtime_ns for path in [data, *data.iterdir()]}
    inject = small(num_rounds=4, free_bytes=1 << 28)
    done = bench("--ranks", "2", "--time", "10s", "--path", data, "--out", out, "--json", inject=inject)
    assert done.returncode == 0, done.stderr
    found = content(done)
    assert json.loads(out.read_text()) == found
    names = {one["name"] for one in found["measurements"]}
    assert names >= {
        *("matmul", "memory_copy", "memory_triad", "operator_dispatch", "decode_jpeg", "decode_zlib"),
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"),
        *("storage_sequential_read", "storage_random_read", "storage_small_files"),
    }
    assert found["wrong"] == []
    assert {one["name"] for one in found["measurements"]} <= set(NAMES)
    for one in found["measurements"]:
        assert one["value"] > 0
        assert one["n"] >= 3
        assert one["spread"] >= 0
        assert one["checked"]
        assert one["origin"] == "measured"
    # Bus bandwidth as nccl-tests has it, typed by hand for two ranks: S/t times 1, or times a half.
    factors = {"all_reduce": 1.0, "broadcast": 1.0, "send_recv": 1.0}
    for one in found["measurements"]:
        if one["group"] == "all":
            by_hand = one["size"] / one["seconds"] * factors.get(one["name"], 0.5)
            assert one["value"] == pytest.approx(by_hand, rel=1e-9)
    # No file of the user's was touched.
    assert {path: path.stat().st_mtime_ns for path in [data, *data.iterdir()]} == before
    assert "host_to_device, device_to_host" in found["not_measured"]


def test_writing_is_done_in_a_folder_of_our_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    names = [f"--only=storage_{what}" for what in ("sequential_write", "sequential_read", "random_read", "small_files")]
    inject = SMALL + "    import flatout.probe.ceilings.storage as storage\n    storage.SHARD_BYTES = 16 << 20\n"
    done = bench("--ranks", "1", "--time", "60s", "--path", tmp_path, "--allow-write", "--json", *names, inject=inject)
    found = content(done)
    assert {one["name"] for one in found["measurements"]} == {name.removeprefix("--only=") for name in names}
    assert all(one["note"] for one in found["measurements"])
    assert found["not_measured"] == {}  # nothing else was asked for
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_collective_that_does_nothing_is_a_failure() -> None:
    inject = SMALL + "    import torch.distributed as d\n    d.all_reduce = lambda *_, **__: None\n"
    done = bench(
        "--ranks", "2", "--time", "60s", "--only", "all_reduce", "--only", "broadcast", "--json", inject=inject
    )
    found = content(done)
    assert done.returncode == 1
    assert {one["name"] for one in found["wrong"]} == {"all_reduce"}
    assert "elements are wrong" in found["wrong"][0]["reason"]
    assert {one["name"] for one in found["measurements"]} == {"broadcast"}
    assert {what.split()[0] for what in found["not_measured"]} <= {"all_reduce", "broadcast", "collectives"}


def test_a_quick_and_wrong_decoder_is_a_failure_and_is_not_saved() -> None:
    done = bench(
        *("--ranks", "1", "--time", "60s", "--only", "decode_zlib"),
        inject=SMALL + "import zlib\nreal = zlib.decompress\n"
        "zlib.decompress = lambda d, *a: b'' if len(d) > 100_000 else real(d, *a)\n",
    )
    assert done.returncode == 1
    assert "WRONG RESULTS" in done.stdout
    assert "the output differs from what was packed" in done.stdout
    assert "saved" not in done.stderr


def test_without_torch_numpy_measures_and_says_so() -> None:
    hide = (
        "import importlib.util, sys\nreal = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
        "sys.modules['torch'] = None\n"
    )
    found = content(bench("--time", "60s", "--json", inject=SMALL + hide))
    products = [one for one in found["measurements"] if one["name"] == "matmul"]
    assert products
    assert {one["backend"] for one in products} == {"numpy"}
    assert found["not_measured"]["collectives"] == "torch is not installed here"
    assert "torch" not in found["software"]


def test_a_slow_rank_is_found_among_four() -> None:
    slow = (
        "if os.environ.get('RANK') == '2':\n    import time, torch\n    real = torch.add\n"
        "    torch.add = lambda *a, **k: (time.sleep(0.3), real(*a, **k))[1]\n"
    )
    # Calls of so many milliseconds that noise is no outlier.
    inject = small(num_rounds=7, free_bytes=2 << 30, sample_s=0.02) + slow
    done = bench("--ranks", "4", "--time", "20s", "--only", "memory_triad", "--json", inject=inject)
    found = content(done)
    assert [(one["name"], one["peer"]) for one in found["peers"]] == [("memory_triad fp32", "rank 2")]


def test_under_torchrun_the_first_rank_reports_alone() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = bench("--time", "60s", "--only", "broadcast", "--json", prefix=torchrun)
    assert done.returncode == 0, done.stderr
    found = content(done)
    assert found["num_devices"] == 2
    assert {tuple(one["ranks"]) for one in found["measurements"]} == {(0, 1)}


def test_a_rank_that_dies_is_one_line() -> None:
    inject = (
        "import os, sys\nif os.environ.get('RANK') == '1':\n"
        "    sys.stderr.write('no such device\\n')\n    os._exit(7)\n"
    )
    done = bench("--ranks", "2", "--time", "12s", inject=inject)
    assert done.returncode == 2
    assert done.stderr == "error: rank 1 ended with code 7: no such device\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "soon"], "must be a duration"),
        (["--time", "1s"], "from 10s to 1d"),
        (["--path", "missing"], "must be a folder"),
        (["--allow-write"], "needs a folder to write to"),
        (["--only", "matmul", "--only", "nonsense"], "`nonsense` is not a measurement"),
        (["--only", "storage_random_read"], "needs a folder on the storage to measure\nhint: --path DIR\n"),
        (
            ["--time", "12s", "--ranks", "1", "--only", "all_reduce"],
            "nothing in `--only all_reduce` was measured\nhint: collectives: they need at least 2 ranks\n",
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "two"},
        {"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {"SLURM_STEP_NUM_TASKS": "many", "SLURM_PROCID": "0"},
    ],
)
def test_an_environment_of_no_job_is_one_line(environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match="must be a whole number"):
        given_rank(environment)


def test_more_ranks_than_the_memory_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.bench_pipeline.free_bytes", lambda: 32e9)
    about = About(has_torch=True, num_gpus=0)
    assert choose_num_ranks(8, about) == 8
    assert choose_num_ranks(32, about) == 32
    with pytest.raises(UsageError, match="needs 537 GB of memory, but only 32 GB are free"):
        choose_num_ranks(1000, about)


def test_a_folder_in_which_none_can_be_made_is_not_measured() -> None:
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    with storage_benchmarks(Path("/proc"), allow_write=True, prefix=".flatout-bench-test-") as (cases, missing):
        assert cases == []
        assert missing["storage"].startswith("a folder cannot be created there: ")


def test_an_existing_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    out.write_text("mine")
    done = bench("--out", out)
    assert (done.returncode, out.read_text()) == (2, "mine")


def test_what_cannot_be_saved_is_told_all_the_same() -> None:
    """Two minutes of measuring are not lost with a full disk."""
    done = bench("--only", "decode_zlib", "--ranks", "1", "--time", "60s", "--out", "/dev/full", "--force")
    assert done.returncode == 2
    assert "decode_zlib" in done.stdout
    assert done.stderr.startswith("error: `/dev/full` cannot be written: no space left on device\n")


def test_over_two_nodes_of_a_real_slurm_the_first_rank_reports(slurm: SlurmLab) -> None:
    srun = ("srun", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", slurm.python)
    done = bench("--time", "60s", "--only", "broadcast", "--json", prefix=srun)
    assert done.returncode == 0, done.stderr
    found = content(done)
    assert found["num_devices"] == 4
    groups = {(one["group"], tuple(one["ranks"])) for one in found["measurements"]}
    if slurm.has_hostnames:
        assert groups == {
            ("all", (0, 1, 2, 3)), ("pairs", (0, 1)), ("pairs", (2, 3)), ("across", (0, 2)), ("across", (1, 3)),
        }  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "flatout", "bench", "--ranks", "2", "--time", "120s", "--path", str(tmp_path),
               "--only", "storage_sequential_write"]  # fmt: skip
    process = subprocess.Popen(
        [*command, "--allow-write"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".flatout-bench-*/shard-1")) and time.monotonic() < deadline:
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert b"Traceback" not in said
    assert psutil.wait_procs(children, timeout=15)[1] == []
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    """On a terminal of its own; what is printed is on standard output alone."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "bench", "--ranks", "1", "--time", "60s", "--only", "decode_zlib"],
        stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL, env=injected(tmp_path, SMALL),
    )  # fmt: skip
    os.close(follower)
    seen = b""
    with suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(leader, 4096):
            seen += piece
    printed, _ = process.communicate(timeout=60)
    os.close(leader)
    # A measurement of milliseconds can end before the bar is drawn again.
    assert b"starting" in seen or b"measuring" in seen
    assert b"\x1b[2K" in seen and rb"\x1b" not in seen, "the bar moves the cursor, and is not printed as text"
    assert b"decode_zlib" in printed
    assert b"\x1b" not in printed
