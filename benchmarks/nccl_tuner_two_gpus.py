"""What the tuner plugin and `flatout tune nccl` must show on two GPUs.

    python benchmarks/nccl_tuner_two_gpus.py [OUT [SECONDS [PART...]]]

It needs two GPUs of one machine, torch with NCCL 2.24 or later, and a C compiler; NVLS stays off. Each
part prints "right" or "wrong" with its numbers, and the exit code is the number of wrong parts:

    sockets     over sockets, the measured settings and table reach 4 times the default's rate from 28 MiB, and at
                least 0.97 of it from 4 KiB to 1 MiB: the median ratio of starts of both in turn
    small       what `sockets` found in OUT, for its two smallest sizes alone, in more turns: starts of one arm differ
                by a fifth there
    log         with a table of two rows, NCCL's log shows another choice for each of the two sizes
    untouched   the plugin with a table without rows is within 3 % of NCCL without a plugin, by the medians of four
                starts of each in turn
    options     16 to 16 CTAs by the options of a communicator are in the log as 16 channels, and one alone is refused
    corrupting  a transport that flips bits of long messages (`corrupting_sockets.c`) is caught by the known answers
    unequal     ranks with different tables end with one line and do not hang

SECONDS is the time for the search over sockets (default: 400).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from flatout.inside.protocol import Variable
from flatout.launch import with_inside
from flatout.nccl_tuner.build import built_plugin, find_compiler
from flatout.nccl_tuner.choose import times_by_round, times_by_turn
from flatout.nccl_tuner.measure import Ranks, measure
from flatout.nccl_tuner.nccl_log import options_problems, parse_log, table_problems
from flatout.nccl_tuner.settings import log_variables, table_variables
from flatout.nccl_tuner.table_file import checksum, parse_table, table_text
from flatout.nccl_tuner.tuning import TuningRequest, tune_nccl
from flatout.records.collective_table import CollectiveTable
from flatout.records.nccl_tuning import Case, CollectiveWork, GroupShape, Measurements, NcclCandidate, Start

SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
}
NVLINK = {"NCCL_NVLS_ENABLE": "0"}
KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 16 * KIB, 256 * KIB, MIB, 28 * MIB, 256 * MIB)
HEADING = "flatout-collective-table 1\n"
DEFAULT = NcclCandidate(name="default")
PAIRED_TURNS, ROUNDS_OF_TURN = 6, 6
SMALL_TURNS = 20
SEARCH_S = float(sys.argv[2]) if len(sys.argv) > 2 else 400.0
JOB = """
import sys, torch, torch.distributed as dist
import os
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
options = dist.ProcessGroupNCCL.Options()
for word in sys.argv[1:]:
    name, value = word.split("=")
    setattr(options.config, name, int(value))
dist.init_process_group("nccl", pg_options=options, device_id=torch.device("cuda", rank))
for size in (16 << 10, 28 << 20):
    x = torch.full((size // 4,), float(rank + 1), device="cuda")
    dist.all_reduce(x)
    assert bool((x == 3).all()), "wrong sum"
torch.cuda.synchronize()
print("done", flush=True)
"""


def work(sizes: Sequence[int] = SIZES, collective: str = "all_reduce") -> CollectiveWork:
    return CollectiveWork(
        shapes=(GroupShape(groups=((0, 1),)),),
        cases=tuple(Case(collective=collective, shape=0, num_bytes=size) for size in sizes),
        source="acceptance",
        is_standard=True,
    )


def run_ranks(
    folder: Path, variables: dict[str, str], *words: str, tables: Sequence[Path] | None = None
) -> tuple[list[int | None], str]:
    """Run two ranks; return their codes, None after 60 s, and what they said on standard error."""
    script = folder / "job.py"
    script.write_text(JOB)
    ranks = []
    for rank in range(2):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711"}
        table = {} if tables is None else {Variable.NCCL_TABLE: str(tables[rank])}
        environment = with_inside({**os.environ, **variables, **place, **table})
        errors = (folder / f"errors-{rank}").open("wb")
        ranks.append(subprocess.Popen([sys.executable, str(script), *words], env=environment, stderr=errors))
        errors.close()
    codes: list[int | None] = []
    for process in ranks:
        try:
            codes.append(process.wait(60))
        except subprocess.TimeoutExpired:
            codes.append(None)
            process.kill()
    return codes, "".join((folder / f"errors-{rank}").read_text("utf-8", "replace") for rank in range(2))


def measured(
    start: Start,
    of_work: CollectiveWork,
    environment: dict[str, str],
    plugin: Path | None = None,
    backend: str = "nccl",
) -> Measurements:
    return measure(
        Ranks(backend=backend, num_ranks=2, plugin=plugin),
        [start],
        of_work,
        num_turns=1,
        num_rounds=9,
        time_s=120.0,
        environment={**os.environ, **environment},
        say=print,
    )


def sockets(folder: Path) -> tuple[bool, str]:
    request = TuningRequest(
        backend="nccl", transport="socket", num_ranks=2, work=work(), folder=folder, time_s=SEARCH_S, force=True
    )
    tuning = tune_nccl(request, print, {**os.environ, **SOCKETS})
    of_turns = ratios_by_turn(tuning.settings, table_text(tuning.table), SIZES, PAIRED_TURNS, SEARCH_S / 4)
    ratios = {size: statistics.median(ratios) for size, ratios in of_turns.items()}
    is_right = all(ratio >= (4.0 if size >= 28 * MIB else 0.97) for size, ratio in ratios.items())
    (folder / "sockets.json").write_bytes(msgspec.json.encode({"tuning": tuning, "ratios_by_turn": of_turns}))
    return is_right, f"{tuning.settings} {ratios}, by turn {of_turns}\n{table_text(tuning.table)}"


def small(folder: Path) -> tuple[bool, str]:
    found = msgspec.json.decode((folder.parent / "sockets" / "sockets.json").read_bytes())["tuning"]
    table = table_text(msgspec.convert(found["table"], CollectiveTable))
    of_turns = ratios_by_turn(found["settings"], table, SIZES[:2], SMALL_TURNS, SEARCH_S)
    ratios = {size: statistics.median(ratios) for size, ratios in of_turns.items()}
    (folder / "small.json").write_bytes(msgspec.json.encode({"ratios_by_turn": of_turns}))
    return all(ratio >= 0.97 for ratio in ratios.values()), f"{ratios}, by turn {of_turns}"


def ratios_by_turn(
    settings: dict[str, str], table: str, sizes: Sequence[int], num_turns: int, time_s: float
) -> dict[int, list[float]]:
    """Return by size, for each turn, the default's time over the time with these settings and this table."""
    starts = [
        Start(name="plain", candidates=(DEFAULT,)),
        Start(name="final", environment=settings, candidates=(NcclCandidate(name="chosen", table=table),)),
    ]
    measured = measure(
        Ranks(backend="nccl", num_ranks=2, plugin=built_plugin()),
        starts,
        work(sizes),
        num_turns=num_turns,
        num_rounds=ROUNDS_OF_TURN,
        time_s=time_s,
        environment={**os.environ, **SOCKETS},
        say=print,
    )
    times = times_by_turn(measured, ROUNDS_OF_TURN)
    of_turns = {}
    for number, size in enumerate(sizes):
        of_plain, of_final = times["plain", "default"][number], times["final", "chosen"][number]
        turns = sorted(of_plain.keys() & of_final.keys())
        of_turns[size] = [round(of_plain[turn] / of_final[turn], 2) for turn in turns]
    return of_turns


def log(folder: Path) -> tuple[bool, str]:
    rows = "all_reduce 0 1048576 2 1 ring ll 2\nall_reduce 1048577 * 2 1 tree simple 4\n"
    path = folder / "table.txt"
    path.write_text(HEADING + rows)
    variables = {**NVLINK, **table_variables(path, built_plugin()), **log_variables(folder)}
    codes, errors = run_ranks(folder, variables)
    found = parse_log(next(folder.glob("nccl-*.log")).read_text("utf-8", "replace"))
    problems = table_problems(found, parse_table(HEADING + rows, "table"), 2, 1)
    return codes == [0, 0] and not problems and len(found.calls) >= 2, f"{codes} {problems} {found.calls} {errors}"


def untouched(folder: Path) -> tuple[bool, str]:
    empty = NcclCandidate(name="default", table=table_text(CollectiveTable()))
    plain, with_plugin = (DEFAULT, None), (empty, built_plugin())
    of_starts: dict[str | None, list[list[float]]] = {}
    for candidate, plugin in (plain, with_plugin, with_plugin, plain) * 2:
        times = times_by_round(measured(Start(name="a", candidates=(candidate,)), work(), NVLINK, plugin))
        medians = [statistics.median(times["a", "default"][case].values()) for case in range(len(SIZES))]
        of_starts.setdefault(candidate.table, []).append(medians)
    ratios = []
    for case in range(len(SIZES)):
        of_plain = statistics.median(start[case] for start in of_starts[DEFAULT.table])
        of_plugin = statistics.median(start[case] for start in of_starts[empty.table])
        ratios.append(round(of_plain / of_plugin, 3))
    is_right = all(ratio > 0.97 for ratio in ratios)
    spread = {str(table)[:9]: [round(start[0] * 1e6, 1) for start in starts] for table, starts in of_starts.items()}
    return is_right, f"{ratios}; us at {SIZES[0]} bytes by start: {spread}"


def options(folder: Path) -> tuple[bool, str]:
    codes, errors = run_ranks(folder, {**NVLINK, **log_variables(folder)}, "min_ctas=16", "max_ctas=16")
    found = parse_log(next(folder.glob("nccl-*.log")).read_text("utf-8", "replace"))
    problems = options_problems(found, 16, 16)
    alone, _ = run_ranks(folder, NVLINK, "min_ctas=16")
    is_right = codes == [0, 0] and not problems and alone != [0, 0]
    return is_right, f"{codes} {problems}, one alone: {alone} {errors[-300:]}"


def corrupting(folder: Path, backend: str = "nccl") -> tuple[bool, str]:
    """With `gloo` it runs on CPUs."""
    library = corrupting_library(folder)
    bad = Start(name="bad", environment={"LD_PRELOAD": str(library)}, candidates=(DEFAULT,))
    found = measured(bad, work((28 * MIB,)), SOCKETS, backend=backend)
    return len(found.wrong) > 0, f"wrong: {found.wrong}, not measured: {found.not_measured}"


def corrupting_library(folder: Path) -> Path:
    library = folder / "corrupting.so"
    source = Path(__file__).with_name("corrupting_sockets.c")
    subprocess.run([*find_compiler(), "-O2", "-fPIC", "-shared", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def unequal(folder: Path) -> tuple[bool, str]:
    tables = [folder / "0.txt", folder / "1.txt"]
    tables[0].write_text(HEADING + "all_reduce 0 * * * ring ll *\n")
    tables[1].write_text(HEADING + "all_reduce 0 * * * tree simple *\n")
    began = time.monotonic()
    variables = {**NVLINK, "NCCL_TUNER_PLUGIN": str(built_plugin())}
    codes, errors = run_ranks(folder, variables, tables=tables)
    lines = [line for line in errors.splitlines() if line.startswith("flatout: ")]
    is_right = codes == [1, 1] and len(lines) == 2 and "on rank 0" in lines[0]
    took_s = time.monotonic() - began
    return is_right, f"{codes} after {took_s:.0f} s: {lines} ({[checksum(table.read_bytes()) for table in tables]})"


PARTS: tuple[Callable[[Path], tuple[bool, str]], ...] = (unequal, log, untouched, options, corrupting, sockets, small)


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="flatout-nccl-"))
    chosen = sys.argv[3:]
    num_wrong = 0
    for part in PARTS:
        if chosen and part.__name__ not in chosen:
            continue
        folder = out / part.__name__
        folder.mkdir(parents=True, exist_ok=True)
        try:
            is_right, numbers = part(folder)
        except Exception as error:  # noqa: BLE001 - the other parts are run all the same
            is_right, numbers = False, repr(error)
        num_wrong += not is_right
        print(f"{part.__name__}: {'right' if is_right else 'wrong'}: {numbers}", flush=True)
    return num_wrong


if __name__ == "__main__":
    sys.exit(main())
