"""XPlane files: the reader against `jax.profiler.ProfileData`'s counts, and against profiles of known content."""

from __future__ import annotations

import json
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.read import profiles
from tests.read.profiles import BASE_NS, MS, cpu_plane, gpu_planes, plane, xspace

from flatout.attribute.rank import attribute_rank
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.read import SeveralRanksError, TraceSource, read_trace, wire
from flatout.read.xspace import read_xspace
from flatout.records.diagnosis import Diagnosis, Part
from flatout.records.events import EventTable, Kind, TraceFormat

GOLDEN = Path(__file__).parent / "golden"
COUNTS = json.loads((GOLDEN / "profile_data.json").read_text())["files"]


def profile_bytes(name: str) -> bytes:
    archive, _, member = name.partition("/")
    with tarfile.open(GOLDEN / archive) as packed:
        file = packed.extractfile(member)
        assert file is not None
        return file.read()


@pytest.mark.parametrize("name", sorted(name for name in COUNTS if "/" in name))
def test_events_and_their_durations_are_those_that_jax_itself_reads(name: str) -> None:
    compare_with_jax(name, profile_bytes(name))


@pytest.mark.parametrize("name", sorted(name for name in COUNTS if "/" not in name))
def test_events_of_published_profiles_are_those_that_jax_itself_reads(name: str, shared_data: Path) -> None:
    compare_with_jax(name, (shared_data / "frameworks" / name).read_bytes())


def compare_with_jax(name: str, data: bytes) -> None:
    profile = read_xspace(data + wire.PADDING, lambda plane: True)
    found: dict[str, dict[str, list[int]]] = {}
    for line in profile.lines:
        before = found.setdefault(line.plane, {}).setdefault(line.name, [0, 0])
        before[0] += len(line.start_ns)
        before[1] += int(line.duration_ns.sum())
    expected = {plane: lines for plane, lines in COUNTS[name].items() if lines}
    assert {plane: {line: each[0] for line, each in lines.items()} for plane, lines in found.items()} == {
        plane: {line: each[0] for line, each in lines.items()} for plane, lines in expected.items()
    }
    for plane_name, lines in expected.items():
        for line_name, (count, duration_ns) in lines.items():
            assert abs(found[plane_name][line_name][1] - duration_ns) <= count, line_name  # each is cut to whole ns


@pytest.fixture
def gpu_table(tmp_path: Path) -> EventTable:
    return read_trace(profiles.write(tmp_path, xspace(*gpu_planes())))


def rows(table: EventTable) -> set[tuple[str, str, int, int]]:
    columns = (table.kind, table.name, table.start_ns, table.duration_ns)
    return {
        (Kind(kind).name, table.names[name], (start - BASE_NS) // MS, duration // MS)
        for kind, name, start, duration in zip(*(column.tolist() for column in columns), strict=True)
    }


def test_kernels_copies_launches_steps_and_loaders_have_their_kinds_and_times(gpu_table: EventTable) -> None:
    assert gpu_table.meta.format == TraceFormat.XPLANE
    assert (gpu_table.meta.hostname, gpu_table.meta.device, gpu_table.meta.device_name) == ("node", 0, "Nvidia")
    assert dict(gpu_table.dropped) == {
        "events of the line 'XLA Ops'": 4,
        "events of XLA's own threads": 2,  # the marks, which are written anew
    }
    of_first_step = {row for row in rows(gpu_table) if row[2] < 100}
    assert of_first_step == {
        ("KERNEL", "fusion", 20, 30),
        ("KERNEL", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 20),
        ("MEMCPY", "Memcpy HtoD", 70, 5),
        ("USER_ANNOTATION", "ProfilerStep#7", 0, 100),  # until the next one begins
        ("USER_ANNOTATION", "flatout:data_loading (loader.py:3 __next__)", 1, 10),
        ("RUNTIME", "cuLaunchKernel", 12, 0),
        ("RUNTIME", "cuLaunchKernel", 13, 0),
        ("RUNTIME", "cuLaunchKernel", 14, 0),
    }
    copies = gpu_table.kind == Kind.MEMCPY
    assert gpu_table.num_bytes[copies].tolist() == [4096, 4096]


def test_parts_of_a_gpu_are_those_of_its_kernels_and_of_the_host_in_between(gpu_table: EventTable) -> None:
    timeline = attribute_rank(gpu_table)
    assert [step.number for step in timeline.steps] == [7, 8]
    spent = timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)
    in_ms = {Part(part).name: int(ns) // MS for part, ns in enumerate(spent.tolist()) if ns >= MS}
    # Per step: 30 compute, 20 all-reduce, 5 copy, 10 in the loader. The launch begins at 12 ms and the kernel at 20.
    assert in_ms["COMPUTE"] == 60
    assert in_ms["COMMUNICATION_UNSPLIT"] == 40
    assert in_ms["MEMORY_COPY"] == 10
    assert in_ms["DATA_LOADING"] == 20
    assert int(spent.sum()) == timeline.window_end_ns - timeline.window_start_ns
    assert [call.operation for call in timeline.communication.calls] == ["all_reduce", "all_reduce"]


def test_devices_of_one_process_are_ranks(tmp_path: Path) -> None:
    first, host, environment = gpu_planes(0)
    second = gpu_planes(3)[0]
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(xspace(first, second, host, environment))
    source = profiles.write(tmp_path, path.read_bytes())
    with pytest.raises(SeveralRanksError) as error:
        read_trace(source)
    parts = error.value.parts
    assert [part.device for part in parts] == [0, 3]
    tables = [read_trace(part) for part in source.split(parts)]
    assert [set(table.device[table.kind == Kind.KERNEL].tolist()) for table in tables] == [{0}, {3}]
    diagnosis = diagnose_paths([path]).diagnosis
    assert [rank.rank for rank in diagnosis.ranks] == [0, 3]
    assert any("separated by the devices" in note.effect for note in diagnosis.data_quality)


def parts_in_ms(table: EventTable) -> dict[str, int]:
    timeline = attribute_rank(table)
    spent = timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)
    assert int(spent.sum()) == timeline.window_end_ns - timeline.window_start_ns
    return {Part(part).name: int(ns) // MS for part, ns in enumerate(spent.tolist()) if ns >= MS}


def test_operators_on_a_cpu_are_compute_and_loops_do_not_hide_their_collectives(tmp_path: Path) -> None:
    table = read_trace(profiles.write(tmp_path, xspace(cpu_plane(2048))))
    assert table.meta.rank == 1  # the second process: XLA numbers 2,048 devices for each
    assert parts_in_ms(table) == {"COMPUTE": 48, "COMMUNICATION_UNSPLIT": 12, "HOST_LAUNCH": 80}


def test_entering_a_context_manager_is_not_asking_for_data(tmp_path: Path) -> None:
    table = read_trace(profiles.write(tmp_path, xspace(cpu_plane(0))))
    assert not any(name.startswith("flatout:data_loading") for name in table.names)


def test_work_on_a_cpu_counts_before_a_loader_that_runs_beside_it(tmp_path: Path) -> None:
    beside = plane("/host:CPU", {"python": [("$loader.py:3 __next__", 12 * MS, 15 * MS, {})]})
    table = read_trace(profiles.write(tmp_path, xspace(cpu_plane(0), beside)))
    assert parts_in_ms(table)["COMPUTE"] == 48  # the loader takes 1 ms at most, after the second product


HOST_COPY = (
    "%copy-done.2 = f32[4,1024]{1,0} copy-done((f32[4,1024]{1,0}, f32[4,1024]{1,0:S(5)}, u32[]{:S(2)}) %copy-start.2)"
)


def tpu_plane(*, has_asynchronous: bool) -> bytes:
    """Return 4 runs of a program on a TPU: 10 ms computing, 20 waiting for a copy, 10 for an all-reduce of 30."""
    operators: list[profiles.Event] = []
    asynchronous: list[profiles.Event] = []
    programs: list[profiles.Event] = []
    for run in range(4):
        at = (50 + run * 40) * MS
        programs.append(("jit_f(123)", at, 40 * MS, {}))
        operators += [
            ("%all-reduce-start.1", at, 0, {}),
            ("%fusion.3", at, 10 * MS, {}),
            ("%fusion.9", at + 2 * MS, 0, {}),  # its end was lost: the work around it lasts all the same
            (HOST_COPY, at + 10 * MS, 20 * MS, {}),
            ("%all-reduce-done.1", at + 30 * MS, 10 * MS, {}),
        ]
        asynchronous.append(("%all-reduce-start.1", at + 10 * MS, 30 * MS, {}))
    lines = {"XLA Modules": programs, "XLA Ops": operators}
    return plane("/device:TPU:0", lines | ({"Async XLA Ops": asynchronous} if has_asynchronous else {}))


def calls_ahead(*numbers: int) -> bytes:
    """Return a host that makes all its calls before the device begins."""
    return plane("/host:CPU", {"main": [("train", number * MS, MS, {"step_num": number}) for number in numbers]})


@pytest.mark.parametrize("has_asynchronous", [True, False])
def test_copies_and_collectives_that_a_tpu_waits_for_are_not_compute(tmp_path: Path, has_asynchronous: bool) -> None:
    table = read_trace(profiles.write(tmp_path, xspace(tpu_plane(has_asynchronous=has_asynchronous))))
    assert any("runs of jit_f on the device count as the steps" in note.effect for note in table.quality)
    # Communication hides the copy where the line of asynchronous operators shows that it ran meanwhile.
    hidden = 20 if has_asynchronous else 0
    expected = {"COMPUTE": 40, "COMMUNICATION_UNSPLIT": 40 + 4 * hidden, "MEMORY_COPY": 80 - 4 * hidden}
    assert parts_in_ms(table) == {part: time for part, time in expected.items() if time}
    copies = table.kind == Kind.MEMCPY
    assert {table.names[code] for code in table.name[copies]} == {"Memcpy HtoD"}
    assert set(table.num_bytes[copies].tolist()) == {4 * 1024 * 4}


@pytest.mark.parametrize(("marked", "steps"), [((7, 8, 9, 10), [7, 8, 9, 10]), ((3, 4), [3, 4]), ((), [0, 1, 2, 3])])
def test_steps_of_a_tpu_are_runs_of_its_program_with_the_numbers_of_the_script(
    tmp_path: Path, marked: tuple[int, ...], steps: list[int]
) -> None:
    data = xspace(tpu_plane(has_asynchronous=True), calls_ahead(*marked))
    timeline = attribute_rank(read_trace(profiles.write(tmp_path, data)))
    assert [step.number for step in timeline.steps] == steps
    assert [(step.end_ns - step.start_ns) // MS for step in timeline.steps] == [160 // len(steps)] * len(steps)


def published(name: str, folder: Path) -> tuple[list[int | None], EventTable]:
    """Return the devices of a published profile that are ranks, and the events of the first one."""
    path = folder / name
    path.write_bytes(profile_bytes(f"published_profiles.tar.xz/{name}"))
    source = TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size)
    with pytest.raises(SeveralRanksError) as error:
        read_trace(source)
    return [part.device for part in error.value.parts], read_trace(source.split(error.value.parts)[0])


def test_the_wait_for_copies_of_a_real_tpu_is_that_of_its_operators(tmp_path: Path) -> None:
    devices, table = published("xprof_tpu_v6e.xplane.pb", tmp_path)
    assert devices == [0, 1, 2, 3]
    assert len(attribute_rank(table).steps) == 100
    # By jax.profiler.ProfileData: `copy-done` takes 76.048 of the 78.415 s of the 100 runs of the program.
    assert parts_in_ms(table)["MEMORY_COPY"] == pytest.approx(76_048, rel=2e-3)


def test_gpus_to_which_tensorflow_only_copies_are_no_ranks(tmp_path: Path) -> None:
    devices, table = published("tf_gpu_multi_worker.xplane.pb", tmp_path)
    assert devices == [4, 6]
    (step,) = attribute_rank(table).steps
    compute = table.kind == Kind.KERNEL
    # By jax.profiler.ProfileData: a step of 19.865 ms, with kernels of 14.825 ms.
    assert (step.end_ns - step.start_ns) / MS == pytest.approx(19.865, abs=0.1)
    assert table.duration_ns[compute].sum() / MS == pytest.approx(14.825, abs=0.001)
    assert any("only copied do not count as ranks: [1]" in note.problem for note in table.quality)


def test_without_marks_the_calls_of_the_jitted_function_are_the_steps_and_that_is_said(tmp_path: Path) -> None:
    table = read_trace(profiles.write(tmp_path, xspace(cpu_plane(0, marked=False))))
    marks = [name for name in table.names if name.startswith("ProfilerStep#")]
    assert marks == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert any("PjitFunction(update)" in note.effect for note in table.quality)


def test_collectives_of_two_processes_match_by_run_and_operator(tmp_path: Path) -> None:
    tables = [
        read_trace(profiles.write(tmp_path, xspace(cpu_plane(2048 * rank)), f"{rank}.xplane.pb")) for rank in (0, 1)
    ]
    numbers = [table.sequence[table.collective >= 0].tolist() for table in tables]
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 3


# Damage


def test_a_file_cut_at_any_byte_gives_the_events_before_the_cut_or_one_line(tmp_path: Path) -> None:
    data = xspace(*gpu_planes())
    whole = len(rows(read_trace(profiles.write(tmp_path, data))))
    most = 0
    for size in range(0, len(data), 37):
        source = profiles.write(tmp_path, data[:size])
        with suppress(InputError):
            table = read_trace(source)
            assert len(rows(table)) <= whole
            most = max(most, len(rows(table)))
    assert most > whole // 2


def test_damaged_bytes_are_said_and_lower_the_confidence(tmp_path: Path) -> None:
    data = xspace(*gpu_planes())
    table = read_trace(profiles.write(tmp_path, data[: len(data) // 2]))
    notes = [note for note in table.quality if "damaged or truncated" in note.problem]
    assert [note.max_confidence for note in notes] == ["inconclusive"]


@pytest.mark.parametrize("value", [0, 1 << 62, -1])
def test_times_that_cannot_be_are_left_out(tmp_path: Path, value: int) -> None:
    bad = plane("/host:CPU", {"python": [("train", value, 5, {"step_num": 1}), ("train", 10, 5, {"step_num": 2})]})
    try:
        table = read_trace(profiles.write(tmp_path, xspace(bad)))
    except InputError:
        return
    assert (table.duration_ns >= 0).all() and (np.diff(table.start_ns) >= 0).all()


# Labelled jobs of two real processes, on CPUs and on two H200: benchmarks/jax_labelled_jobs.py


@pytest.fixture(scope="module")
def labelled() -> dict[str, Diagnosis]:
    names = [path.name.removeprefix("jax_").removesuffix(".tar.xz") for path in sorted(GOLDEN.glob("jax_*.tar.xz"))]
    return {name: diagnose_paths([GOLDEN / f"jax_{name}.tar.xz"], engine="serial").diagnosis for name in names}


def blamed(diagnosis: Diagnosis) -> set[tuple[str, tuple[int, ...]]]:
    """Return the findings that name one rank alone, and cost at least a tenth of the step."""
    return {
        (finding.name, finding.ranks)
        for finding in diagnosis.findings
        if len(finding.ranks) == 1 and finding.share_of_step > 0.1
    }


@pytest.mark.parametrize("device", ["", "cuda_"], ids=["two CPUs", "two H200"])
@pytest.mark.parametrize(
    ("cause", "expected", "part"),
    [
        ("slow_compute", ("straggler", (1,)), "compute"),
        ("slow_input", ("data-loading", (1,)), "data_loading"),
        ("late_start", ("host-bound", (1,)), "host_launch"),
    ],
)
def test_each_planted_cause_is_found_on_its_rank(
    labelled: dict[str, Diagnosis], device: str, cause: str, expected: tuple[str, tuple[int, ...]], part: str
) -> None:
    diagnosis = labelled[device + cause]
    assert blamed(diagnosis) == {expected}
    waits: dict[tuple[int, str], float] = {}
    for each in diagnosis.blame:
        key = (each.blamed_rank, each.part)
        waits[key] = waits.get(key, 0.0) + each.wait_s
    assert max(waits, key=lambda key: waits[key]) == (1, part)


@pytest.mark.parametrize("name", ["healthy", "cuda_healthy"])
def test_a_healthy_job_blames_no_rank(labelled: dict[str, Diagnosis], name: str) -> None:
    assert not [finding for finding in labelled[name].findings if len(finding.ranks) == 1]
    assert "straggler" not in {finding.name for finding in labelled[name].findings}


def test_parts_of_real_profiles_sum_to_the_window(labelled: dict[str, Diagnosis]) -> None:
    for diagnosis in labelled.values():
        for rank in diagnosis.ranks:
            assert abs(sum(rank.parts_s.values()) - rank.window_s) < 1e-6


def test_advice_for_jax_names_no_setting_of_pytorch(labelled: dict[str, Diagnosis]) -> None:
    texts: list[Any] = [change for each in labelled.values() for finding in each.findings for change in finding.changes]
    assert texts
    assert not [text for text in texts if "torch" in text or "DataLoader" in text]
