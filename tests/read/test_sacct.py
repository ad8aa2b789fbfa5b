"""Slurm's accounting: the public samples against counts made in another way, and tables typed for the purpose."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import InputError
from flatout.read.sacct import _seconds, merged, parse_sacct, read_sacct
from flatout.read.slurm_values import duration_s, exit_code_of, gpus_of_gres, gpus_of_tres, state_of, time_s
from flatout.records.attempts import Attempts, job_times

COLUMNS = ("JobID", "JobName", "Account", "State", "AllocTRES", "ElapsedRaw", "Submit", "Start", "End")
HEADER = "|".join(COLUMNS)


def row(job: str = "7", **given: str) -> str:
    values = {
        "JobID": job,
        "JobName": "train",
        "Account": "vision",
        "State": "COMPLETED",
        "AllocTRES": "billing=8,cpu=8,gres/gpu=4,node=1",
        "ElapsedRaw": "3600",
        "Submit": "2026-01-31T12:00:00",
        "Start": "2026-01-31T12:30:00",
        "End": "2026-01-31T13:30:00",
    }
    return "|".join((values | given)[column] for column in COLUMNS)


def read(*lines: str, header: str = HEADER, **options: str) -> Attempts:
    return parse_sacct("\n".join((header, *lines, "")).encode(), name="jobs.txt", **options)


@pytest.fixture(scope="session")
def samples(shared_data: Path) -> Path:
    return shared_data / "job_traces" / "gcm_samples"


def fields(path: Path, delimiter: bytes) -> tuple[list[bytes], list[list[bytes]]]:
    """Header and physical lines, without any of the reader's care."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    header, *lines = [line.split(delimiter) for line in data.splitlines() if line.strip()]
    return header, lines


def test_a_public_sample_with_a_line_break_in_a_field_is_read_whole(samples: Path) -> None:
    path = samples / "sample-sacct-one-multiline.txt"
    header, lines = fields(path, b"|#")
    # GPUs and time stand before the break, so the first halves of rows have them too.
    places = [header.index(name) for name in (b"JobID", b"AllocTRES", b"ElapsedRaw")]
    wanted = {}
    for line in lines:
        if len(line) > max(places) and b"." not in line[places[0]]:
            job, tres, elapsed = (line[place].decode() for place in places)
            wanted[job] = int(tres.split("gres/gpu=")[1].split(",")[0]) * int(elapsed)
    found = read_sacct(path)
    assert {each.job: each.gpu_seconds for each in found.attempts} == wanted == {"201729": 81301504, "201844": 22363136}
    assert [each.state for each in found.attempts] == ["FAILED", "REQUEUED"]
    assert (found.num_rows, found.num_steps, found.left_out) == (4, 2, ())


def test_a_public_sample_with_bytes_that_are_no_utf8_is_read(samples: Path) -> None:
    path = samples / "sample-sacct-output-invalid-utf8.txt"
    header, lines = fields(path, b"|")
    place = header.index(b"JobID")
    found = read_sacct(path)
    assert [each.job.encode() for each in found.attempts] == [line[place] for line in lines if b"." not in line[place]]
    assert found.num_rows == len(lines)
    assert sum(each.gpu_seconds for each in found.attempts) == 99 * 8 + 7212 * 1
    assert "not UTF-8" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "delimiter", "num_rows"),
    [
        ("sample-sacct-output.txt", b"|", 68),
        ("sample-sacct-running-output.txt", b"|#", 10),
        ("sample-sacct-running-output-large.txt.gz", b"|#", 5040),
    ],
)
def test_public_samples_of_steps_alone_hold_no_attempt(
    samples: Path, name: str, delimiter: bytes, num_rows: int
) -> None:
    header, lines = fields(samples / name, delimiter)
    place = header.index(b"JobID")
    assert all(b"." in line[place] for line in lines)
    found = read_sacct(samples / name)
    assert (found.num_rows, found.num_steps, len(found.attempts), found.left_out) == (num_rows, len(lines), 0, ())


def test_public_tables_of_other_commands_are_refused(samples: Path) -> None:
    for name in ("sample-sinfo-output.txt", "sample-scontrol-output.txt", "sample-squeue-output.txt"):
        with pytest.raises(InputError, match="must begin with a header that has JobID and State") as caught:
            read_sacct(samples / name)
        assert "without -n" in caught.value.hint


# As Slurm 22.05 with slurmdbd printed it of jobs made for this: done, failed at once, out of time, an array, a
# heterogeneous job, one that was preempted, then lost its node, then ran, and one that waits.
REAL = """\
JobID|State|AllocTRES|ElapsedRaw|Account|User|Submit|Start|End|WCKey
1|COMPLETED|billing=1,cpu=1,gres/gpu:h100=4,gres/gpu=4,node=1|2|vision|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:20|detect
1.batch|COMPLETED|cpu=1,gres/gpu:h100=4,gres/gpu=4,mem=0,node=1|2|vision||2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:20|
2|FAILED|billing=1,cpu=1,gres/gpu:h100=2,gres/gpu=2,node=1|0|language|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:18|*detect
4|TIMEOUT|billing=1,cpu=1,gres/gpu:h100=1,gres/gpu=1,node=1|87|language|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:20:45|*detect
5|PREEMPTED|billing=16,cpu=16,gres/gpu:h100=16,gres/gpu=16,node=2|4|vision|root|2026-11-28T11:19:18|2026-11-28T11:20:45|2026-11-28T11:20:49|*detect
6+0|COMPLETED|billing=1,cpu=1,gres/gpu:h100=1,gres/gpu=1,node=1|2|vision|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:20|*detect
6+0.0|COMPLETED|cpu=1,gres/gpu:h100=1,gres/gpu=1,mem=0,node=1|1|vision||2026-11-28T11:19:19|2026-11-28T11:19:19|2026-11-28T11:19:20|
6+1|COMPLETED|billing=1,cpu=1,gres/gpu:h100=2,gres/gpu=2,node=1|2|vision|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:20|*detect
3_1|COMPLETED|billing=1,cpu=1,gres/gpu:h100=1,gres/gpu=1,node=1|1|vision|root|2026-11-28T11:19:18|2026-11-28T11:19:18|2026-11-28T11:19:19|segment
5|NODE_FAIL|billing=16,cpu=16,gres/gpu:h100=16,gres/gpu=16,node=2|15|vision|root|2026-11-28T11:20:49|2026-11-28T11:20:55|2026-11-28T11:21:10|*detect
5|RUNNING|billing=16,cpu=16,gres/gpu:h100=16,gres/gpu=16,node=2|1|vision|root|2026-11-28T11:21:10|2026-11-28T11:21:20|Unknown|*detect
7|PENDING||0|vision|root|2026-11-28T11:19:18|Unknown|Unknown|*detect
"""


def test_what_a_real_slurm_printed() -> None:
    found = parse_sacct(REAL.encode(), name="jobs.txt")
    assert (found.num_rows, found.num_steps, found.num_repeated, found.left_out) == (12, 2, 0, ())
    assert [(each.job, each.state, each.gpu_seconds) for each in found.attempts] == [
        ("1", "COMPLETED", 8),
        ("2", "FAILED", 0),
        ("4", "TIMEOUT", 87),
        ("5", "PREEMPTED", 64),
        ("6+0", "COMPLETED", 2),
        ("6+1", "COMPLETED", 4),
        ("3_1", "COMPLETED", 1),
        ("5", "NODE_FAIL", 240),
        ("5", "RUNNING", 16),
        ("7", "PENDING", 0),
    ]
    assert {each.project for each in found.attempts} == {"detect", "segment"}
    assert all(each.gpu_types.keys() <= {"h100"} for each in found.attempts)


def test_a_name_with_the_delimiter_in_it_is_told_with_the_way_out() -> None:
    found = read(row(JobName="a|b"), row("8"))
    assert [each.job for each in found.attempts] == ["8"]
    assert "sacct --delimiter='@@'" in found.notes[0]
    header, line = (text.replace("|", "@@") for text in (HEADER, row(JobName="a~b")))
    assert [each.name for each in read(line.replace("~", "|"), header=header).attempts] == ["a|b"]


def test_a_row_is_an_attempt() -> None:
    (found,) = read(row(State="CANCELLED by 1000")).attempts
    assert (found.job, found.state, found.num_gpus, found.elapsed_s) == ("7", "CANCELLED", 4, 3600)
    assert (found.account, found.name, found.user, found.project) == ("vision", "train", None, None)
    assert found.end_s is not None and found.start_s is not None and found.end_s - found.start_s == 3600
    assert found.line == 2


@pytest.mark.parametrize("job", ["12", "12_7", "12_[3-9%2]", "12+1"])
def test_arrays_and_heterogeneous_jobs_are_jobs_and_their_steps_are_none(job: str) -> None:
    found = read(row(job), row(f"{job}.batch"), row(f"{job}.extern"), row(f"{job}.0"))
    assert [each.job for each in found.attempts] == [job]
    assert found.num_steps == 3


def test_each_attempt_of_a_requeued_job_counts() -> None:
    first = row(State="PREEMPTED", Start="2026-01-31T12:30:00", End="2026-01-31T12:40:00", ElapsedRaw="600")
    found = read(first, row(Start="2026-01-31T13:00:00"))
    assert [each.elapsed_s for each in found.attempts] == [600, 3600]


def test_a_row_that_is_there_twice_counts_once() -> None:
    found = read(row(), HEADER, row())
    assert (len(found.attempts), found.num_repeated, found.num_rows) == (1, 1, 2)


def test_of_two_exports_of_a_running_job_the_later_counts() -> None:
    early = read(row(State="RUNNING", End="Unknown", ElapsedRaw="60"))
    late = read(row())
    for files in ([early, late], [late, early]):
        (found,) = merged(files).attempts
        assert (found.state, found.elapsed_s) == ("COMPLETED", 3600)
    assert merged([early, late]).num_repeated == 1


def test_a_running_job_has_no_end() -> None:
    (found,) = read(row(State="RUNNING", End="Unknown")).attempts
    assert found.end_s is None
    assert found.is_running


def test_a_name_may_have_line_breaks() -> None:
    found = read(row(JobName="two\nlines\n\nmore"), row("8"))
    assert [each.name for each in found.attempts] == ["two\nlines\n\nmore", "train"]
    assert [each.line for each in found.attempts] == [2, 6]


def test_a_last_column_may_have_line_breaks() -> None:
    found = parse_sacct(
        b"JobID|State|AllocTRES|ElapsedRaw|Comment\n1|COMPLETED|gres/gpu=1|5|one\nmore\n2|COMPLETED|gres/gpu=1|5|\n",
        name="x",
    )
    assert [each.job for each in found.attempts] == ["1", "2"]
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("damage", "line", "reason"),
    [
        (row()[:40], 2, "columns"),
        ("sacct: error: slurmdbd is slow", 2, "truncated, or is not a row"),
        (row() + "|more", 2, "10 columns, and the header 9"),
        (row(JobName="a|b"), 2, "10 columns, and the header 9"),
        (row("7x"), 2, "a JobID must look like 12"),
        (row(State="done"), 2, "a state must be one of Slurm's"),
        (row(State="DONE_AND_DUSTED"), 2, "a state must be one of"),
        (row(State=""), 2, "a state must be one of Slurm's"),
        (row(AllocTRES="gres/gpu=x"), 2, "a number of GPUs must look like gres/gpu=8"),
        (row(AllocTRES=""), 2, "it ran, but AllocTRES is empty"),
        (row(ElapsedRaw="-5"), 2, "elapsedraw: a count must be a whole number"),
        (row(Start="yesterday"), 2, "start: a time must look like"),
        (row(Submit="2026-13-01T00:00:00"), 2, "submit: a time must look like"),
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_and_told(damage: str, line: int, reason: str) -> None:
    found = read(damage, row("8"), row("9"))
    assert [each.job for each in found.attempts] == ["8", "9"]
    assert [each.line for each in found.left_out] == [line]
    assert reason in found.left_out[0].reason
    assert found.num_rows == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("7|train|COMPLETED\n", "must begin with a header"),
        ("       JobID    JobName      State\n------------\n", "must begin with a header"),
        ("JobID|State|ElapsedRaw\n", "no AllocTRES"),
        ("JobID|State|AllocTRES\n", "no ElapsedRaw"),
        ("State|AllocTRES|ElapsedRaw\n", "must begin with a header"),
    ],
)
def test_a_table_without_what_is_needed_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_sacct(text.encode(), name="jobs.txt")
    assert "\n" not in str(caught.value)
    assert "sacct -a -D -P" in caught.value.hint


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_sacct(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_sacct(tmp_path / "missing")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(HEADER.encode())[:-6])
    with pytest.raises(InputError, match="is damaged"):
        read_sacct(tmp_path / "cut.gz")


def test_the_project_is_the_wckey_or_the_column_asked_for() -> None:
    header = "JobID|State|AllocTRES|ElapsedRaw|WCKey|QOS"
    line = "1|COMPLETED|gres/gpu=1|5|*llm|high"
    assert [each.project for each in read(line, header=header).attempts] == ["llm"]
    assert [each.project for each in read(line, header=header, project="qos").attempts] == ["high"]
    with pytest.raises(InputError, match="a project must be one of"):
        read(line, header=header, project="node")


def test_squeue_is_read_too() -> None:
    found = read(
        "31|RUNNING|vision|gres/gpu:h100=8,gres/gpu=8|1-00:00:01", header="JOBID|STATE|ACCOUNT|TRES_ALLOC|TIME"
    )
    assert [(each.num_gpus, each.gpu_types, each.elapsed_s) for each in found.attempts] == [(8, {"h100": 8}, 86401)]
    found = read("32|R|gpu:h100:4|2|10:00", header="JOBID|ST|TRES_PER_NODE|NODES|TIME")
    assert [(each.state, each.num_gpus, each.elapsed_s) for each in found.attempts] == [("RUNNING", 8, 600)]


def test_what_asked_for_gpus_and_shows_none_is_told() -> None:
    header = "JobID|State|AllocTRES|ReqTRES|ElapsedRaw"
    found = read("1|COMPLETED|cpu=8,node=1|gres/gpu=8,cpu=8|60", header=header)
    assert "AccountingStorageTRES" in found.notes[0]


def test_shares_of_gpus_are_not_counted_and_that_is_told() -> None:
    found = read(row(AllocTRES="cpu=8,gres/shard=4,node=1"))
    assert [each.num_gpus for each in found.attempts] == [0]
    assert "held shares of GPUs" in found.notes[0]


def test_a_simulator_gets_the_jobs_by_submission() -> None:
    found = read(
        row("2", Submit="2026-01-31T12:10:00"), row("1"), row("3", AllocTRES="cpu=1"), row("4", Submit="Unknown")
    )
    assert [(each.job, each.num_gpus, each.elapsed_s) for each in job_times(found)] == [("1", 4, 3600), ("2", 4, 3600)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:48", 48),
        ("1-02:03:04", 93784),
        ("20:00", 1200),
        ("00:23.779", 23.779),
        ("2-03", None),
        ("Unknown", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    if text == "2-03":
        with pytest.raises(ValueError, match="must look like 1-02:03:04"):
            duration_s(text)
    else:
        assert duration_s(text) == seconds


def test_times() -> None:
    assert time_s("1970-01-02T00:00:01") == time_s("86401") == 86401
    assert time_s("Unknown") is None


@pytest.mark.parametrize(
    ("text", "number", "types"),
    [
        ("billing=8,gres/gpu=8,gres/gpu:h100=8,node=1", 8, {"h100": 8}),
        ("gres/gpu:a100=2,gres/gpu:h100=4", 6, {"a100": 2, "h100": 4}),
        ("gres/gpu=8,gres/gpu:h100=6", 8, {"h100": 6}),
        ("gres/gpumem=40G,gres/gpuutil=3,cpu=2", 0, {}),
        ("gres/gpu:a100_3g.20gb=2", 6 / 7, {"a100_3g.20gb": 6 / 7}),
        ("", 0, {}),
    ],
)
def test_gpus_of_trackable_resources(text: str, number: float, types: dict[str, float]) -> None:
    assert gpus_of_tres(text) == (pytest.approx(number), pytest.approx(types))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:8", (16, {})),
        ("gpu:h100:4(S:0-1)", (8, {"h100": 8})),
        ("gres/gpu:2", (4, {})),
        ("gpu", (2, {})),
        ("(null)", (0, {})),
        ("shard:4", (0, {})),
    ],
)
def test_gpus_of_generic_resources_are_of_each_node(text: str, found: tuple[float, dict[str, float]]) -> None:
    assert gpus_of_gres(text, 2) == found


@pytest.mark.parametrize("count", ["1000000000", "9" * 5000, "²", "-1", "1e3", ""])
def test_a_number_of_gpus_that_is_none_is_refused_in_one_line(count: str) -> None:
    """A larger number than 999,999,999 is damage, and makes GPU-hours that no number can hold."""
    with pytest.raises(ValueError, match=r"must look like gres/gpu=8, but is `gres/gpu=.{0,60}`") as caught:
        gpus_of_tres(f"cpu=2,gres/gpu={count}")
    assert "\n" not in str(caught.value)
    if count:
        with pytest.raises(ValueError, match="per node must look like gpu:8"):
            gpus_of_gres(f"gpu:h100:{count}", 2)


def test_the_largest_number_of_gpus_and_the_longest_duration() -> None:
    assert gpus_of_tres("gres/gpu=999999999")[0] == gpus_of_gres("gpu:h100:999999999", 1)[0] == 999_999_999
    assert duration_s("999999999-00:00:01") == 999_999_999 * 86_400 + 1
    with pytest.raises(ValueError, match="an exit code must look like 0:0"):
        exit_code_of("9" * 5000 + ":0")
    for text in ("1000000000-00:00:01", "9" * 400 + ":00:01", "00:00:" + "9" * 5000):
        with pytest.raises(ValueError, match="a duration must look like"):
            duration_s(text)


def test_states() -> None:
    assert [state_of(text) for text in ("CANCELLED by 1000", "CANCELLED+", "NODE_FAIL")] == [
        "CANCELLED",
        "CANCELLED",
        "NODE_FAIL",
    ]


TEXT = st.text(st.characters(exclude_characters="|\r\x00", exclude_categories=("Cs",)), max_size=20).map(str.strip)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(1, 10**9),
            TEXT,
            st.integers(0, 4096),
            st.integers(0, 10**7),
            st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 5"]),
        ),
        max_size=20,
    ),
    order=st.permutations(["JobName", "JobID", "AllocTRES", "ElapsedRaw", "State", "Start"]),
    has_trailing=st.booleans(),
)
def test_what_is_written_as_sacct_writes_it_is_read_back(
    rows: Sequence[tuple[int, str, int, int, str]], order: Sequence[str], has_trailing: bool
) -> None:
    """In any order of columns, with line breaks in names. First in a row, a break could not be told from a cut row."""
    if order[0] == "JobName":
        order = [*order[1:], order[0]]
    if order[-1] == "JobName":
        order = [order[0], order[-1], *order[1:-1]]
    end = "|" if has_trailing else ""
    lines = ["|".join(order) + end]
    for place, (job, name, gpus, elapsed, state) in enumerate(rows):
        values = {
            "JobName": name,
            "JobID": str(job),
            "AllocTRES": f"cpu=1,gres/gpu={gpus}",
            "ElapsedRaw": str(elapsed),
            "State": state,
            "Start": str(1_000_000 + place),
        }
        lines.append("|".join(values[column] for column in order) + end)
    found = parse_sacct("\n".join(lines).encode(), name="x")
    assert found.left_out == ()
    assert [(int(each.job), each.name or "", each.num_gpus, each.elapsed_s, each.state) for each in found.attempts] == [
        (job, name, gpus, elapsed, state.split()[0]) for job, name, gpus, elapsed, state in rows
    ]


@settings(deadline=None)
@given(data=st.binary(max_size=300), cut=st.integers(0, 200))
def test_any_damage_is_told_or_refused(data: bytes, cut: int) -> None:
    text = "\n".join((HEADER, row(), row("8"), row("9"))).encode()
    for damaged in (data, text[:cut] + data + text[cut:]):
        with suppress(InputError):
            found = parse_sacct(damaged, name="x")
            assert found.num_rows == len(found.attempts) + found.num_steps + found.num_repeated + len(found.left_out)


@pytest.mark.parametrize(
    "text", ["2026-01-31", "2026-01-31 12:00:00Z", "2026-W05-6T12:00:00", "2026-01-31T12:00:60", "20:00:00", "12:00"]
)
def test_a_time_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time must look like 2026-01-31T12:00:00"):
        time_s(text)


@pytest.mark.parametrize(("text", "is_time"), [("253402300799", True), ("253402300800", False), ("9" * 400, False)])
def test_a_time_after_the_last_date_is_refused(text: str, is_time: bool) -> None:
    if is_time:
        assert time_s(text) == float(text)
        return
    with pytest.raises(ValueError, match="a time must look like"):
        time_s(text)


@pytest.mark.parametrize(("length", "is_count"), [(20, True), (21, False), (400, False)])
def test_a_count_has_at_most_the_digits_of_64_bits(length: int, is_count: bool) -> None:
    if is_count:
        assert _seconds("1" * length) == float("1" * length)
        return
    with pytest.raises(ValueError, match=f"at most 20 digits, but has {length}"):
        _seconds("1" * length)
