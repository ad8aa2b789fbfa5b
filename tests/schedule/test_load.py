"""Job histories of every format, on rows re-typed as their documentation has them, and what is said of bad ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.errors import InputError
from flatout.schedule.cluster import read_cluster
from flatout.schedule.load import attempts, openb
from flatout.schedule.load.detect import load

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9
2017-10-09 06:13:36,0.0,1,0.0,6214e9
"""
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vcA,8,64,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:01:00,2020-04-01 01:01:00,3600,50
2,u2,vcB,0,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:01:00,60,0
"""
ACME = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
57,u59,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
58,u59,1,8,128,Other,CANCELLED,2023-03-01 00:18:22+08:00,,2023-03-01 00:20:51+08:00,0,32,0.0
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,460,V100M16|V100M32,LS,Running,10,110,20
p1,6000,12288,0,0,,LS,Running,0,100,0
p2,6000,12288,8,1000,,BE,Pending,5,,
p3,6000,12288,2,1000,,BE,Running,5,55,5
"""
GAVEL = "ResNet-18 (batch size 32)\tpython3 main.py\t--num_steps\t1\t7000\t11.5\t2\nLM\tpython\t--steps\t1\t5\t0.0\t1\n"
RATES = """{
    "v100": {"('ResNet-18 (batch size 32)', 2)": {"null": 70.0}},
    "k80": {"('ResNet-18 (batch size 32)', 2)": {"null": 7.0}}
}"""


def written(tmp_path: Path, text: str, name: str = "jobs.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_philly(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(PHILLY.encode()))
    found = load(path)
    assert [(job.num_gpus, job.duration_s, job.team) for job in found.jobs] == [
        (8, 2951.0, "6214e9"),
        (1, 66.0, "11cb48"),
    ]
    assert found.jobs[1].submit_s - found.jobs[0].submit_s == 48 * 60 + 52
    assert found.skipped == {"no duration": 1}


def test_helios(tmp_path: Path) -> None:
    found = load(written(tmp_path, HELIOS))
    (job,) = found.jobs
    assert (job.num_gpus, job.duration_s, job.user, job.team) == (8, 3600.0, "u1", "vcA")
    assert found.skipped == {"no GPUs": 1}


def test_acme_runs_from_start_to_end(tmp_path: Path) -> None:
    found = load(written(tmp_path, ACME))
    (job,) = found.jobs
    assert (job.num_gpus, job.duration_s, job.team) == (8, 117.0, "Other")
    assert found.skipped == {"never started or ended": 1}


def test_openb_shares_of_a_gpu(tmp_path: Path) -> None:
    found = load(written(tmp_path, OPENB))
    wide, shared = found.jobs
    assert (wide.num_gpus, wide.gpu_share, wide.submit_s, wide.duration_s) == (2, 1.0, 5.0, 50.0)
    assert (shared.gpu_share, shared.gpu_types, shared.duration_s) == (0.46, ("V100M16", "V100M32"), 90.0)
    assert found.skipped == {"no GPUs": 1, "never scheduled": 1}


def test_openb_nodes(tmp_path: Path) -> None:
    text = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\nopenb-node-0001,8000,1,0,\n"
    cluster = openb.nodes(written(tmp_path, text))
    assert [(node.num_gpus, node.gpu_type, node.num_cpus) for node in cluster.nodes] == [(2, "P100", 64.0)]


def test_gavel_turns_steps_into_seconds(tmp_path: Path) -> None:
    written(tmp_path, RATES, "throughputs.json")
    found = load(written(tmp_path, GAVEL, "some.trace"))
    (job,) = found.jobs
    assert (job.submit_s, job.num_gpus, job.duration_s) == (11.5, 2, 100.0)
    assert job.type_speeds == (("v100", 1.0), ("k80", 0.1))
    assert found.skipped == {"no throughput on v100 for its job type and number of GPUs": 1}


def test_gavel_of_ten_columns(tmp_path: Path) -> None:
    written(tmp_path, RATES, "throughputs.json")
    line = "ResNet-18 (batch size 32)\tpython\t.\t--num_steps\t1\t700\t2\t1\t-1.0\t30\n"
    (job,) = load(written(tmp_path, line, "some.trace")).jobs
    assert (job.submit_s, job.num_gpus, job.duration_s) == (30.0, 2, 10.0)


def test_plain_takes_every_column(tmp_path: Path) -> None:
    text = (
        "num_gpus,duration_s,submit_s,user,gpu_share,gpu_types,limit_s,phases,min_gpus,max_gpus,priority\n"
        '1,100,2026-01-31 12:00:00,ann,0.5,A100 H100,200,"60 40",,,3\n4,50,1769860801,bob,,,,,2,8,\n'
    )
    first, second = load(written(tmp_path, text)).jobs
    assert (first.gpu_share, first.gpu_types, first.limit_s, first.phases) == (
        0.5,
        ("A100", "H100"),
        200.0,
        (60.0, 40.0),
    )
    assert (first.priority, first.user) == (3, "ann")
    assert second.submit_s - first.submit_s == 1
    assert (second.min_gpus, second.max_gpus, second.limit_s) == (2, 8, None)


def test_plain_takes_the_data_set_of_a_job_and_the_time_to_copy_it(tmp_path: Path) -> None:
    text = "submit_s,num_gpus,duration_s,dataset,stage_s\n0,1,9,imagenet,600\n0,1,9,,\n0,1,9,laion,\n"
    jobs = load(written(tmp_path, text)).jobs
    assert [(job.dataset, job.stage_s) for job in jobs] == [("imagenet", 600.0), ("", 0.0), ("laion", 0.0)]


def test_attempts_of_one_job_are_one_job() -> None:
    def attempt(job: str, elapsed_s: float, num_gpus: float, submit_s: float | None) -> SimpleNamespace:
        return SimpleNamespace(
            job=job, elapsed_s=elapsed_s, num_gpus=num_gpus, submit_s=submit_s,
            start_s=None, user="ann", account=None, time_limit_s=3600.0,
        )  # fmt: skip

    found = attempts.load(
        [attempt("7", 100, 8, 50), attempt("7", 30, 8, 200), attempt("8", 10, 0, 1), attempt("9", 10, 1, None)]
    )
    (job,) = found.jobs
    assert (job.submit_s, job.duration_s, job.num_gpus, job.limit_s, job.team) == (50, 130, 8, 3600.0, "")
    assert found.skipped == {"no GPUs": 1, "no time of submission": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n", "its columns must be those of a known job history"),
        ("submit_s,num_gpus,duration_s\n1,two,3\n", "line 2: num_gpus must be a number, but is 'two'"),
        ("submit_s,num_gpus,duration_s\n1,2,3\n1,2\n", "line 3: a row must have 3 values, but has 2"),
        ("submit_s,num_gpus,duration_s\n1,1.5,3\n", "line 2: num_gpus must be a whole number, but is '1.5'"),
        ("submit_s,num_gpus,duration_s\n1,1,nan\n", "line 2: duration_s must be a number, but is 'nan'"),
        ("submit_s,num_gpus,duration_s,gpu_share\n1,2,3,0.5\n", "only a job with one GPU can have a gpu_share below 1"),
        ("submit_s,num_gpus,duration_s,gpu_share\n1,1,3,7\n", "gpu_share must be from 0.001 to 1, but is '7'"),
        (
            "submit_s,num_gpus,duration_s,phases\n1,1,3,1 1\n",
            "phases must be seconds of at least 0 that sum to duration_s",
        ),
        ('submit_s,num_gpus,duration_s\n"1,1,3\n', "not a CSV file"),
        ("submit_s,num_gpus,duration_s\n0,1,1e300\n", "line 2: duration_s must be at most 1e+11, but is '1e300'"),
        ("submit_s,num_gpus,duration_s,min_gpus\n0,2,9,4\n", "min_gpus <= num_gpus <= max_gpus must hold"),
        (
            "submit_s,num_gpus,duration_s,submit_s\n0,1,9,4\n",
            "each column must appear once, but `submit_s` appears more than once",
        ),
        ("submit_s,num_gpus,duration_s,stage_s\n0,1,9,60\n", "line 2: stage_s needs a dataset"),
        ("submit_s,num_gpus,duration_s,dataset,stage_s\n0,1,9,a,-1\n", "stage_s must be from 0 to"),
        (PHILLY.replace("2017-10-09 06:13:03", "soon"), "line 3: timestamp must be a time"),
        ("submit_s,num_gpus,duration_s\n1,1,0\n", None),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str | None) -> None:
    path = written(tmp_path, text)
    if said is None:
        assert load(path).skipped == {"no duration": 1}
        return
    with pytest.raises(InputError) as error:
        load(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cluster_too_large_to_be_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "[[nodes]]\ncount = 90_000\ngpus = 8\n" * 2, "cluster.toml")
    with pytest.raises(InputError, match="at most 100,000 nodes, but has 180,000"):
        read_cluster(path)


def test_a_job_without_a_duration_or_gpus_is_skipped_and_a_byte_order_mark_is_none_of_the_columns(
    tmp_path: Path,
) -> None:
    found = load(written(tmp_path, "\ufeffsubmit_s,num_gpus,duration_s\n0,1,\n0,,10\n5,2,10\n"))
    assert found.skipped == {"no duration": 1, "no GPUs": 1}
    assert [(job.submit_s, job.num_gpus, job.duration_s) for job in found.jobs] == [(5, 2, 10)]


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08damaged", b"submit_s,num_gpus,duration_s\n1,1,\xff\n"])
def test_damaged_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"damaged|UTF-8"):
        load(path)


@pytest.mark.parametrize(("duration_s", "is_read"), [(315_360_000, True), (315_360_001, False), (400_000_000, False)])
def test_a_duration_of_more_than_ten_years_is_refused_with_its_field(
    tmp_path: Path, duration_s: int, is_read: bool
) -> None:
    """400,000,000 is the 4.6 days of a job in milliseconds."""
    plain = written(tmp_path, f"submit_s,num_gpus,duration_s\n0,8,60\n5,8,{duration_s}\n")
    other = written(
        tmp_path, f"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,{duration_s},1,1,a\n", "b.csv"
    )
    if is_read:
        assert max(job.duration_s for job in load(plain).jobs) == load(other).jobs[0].duration_s == duration_s
        return
    with pytest.raises(InputError, match=r"jobs.csv, line 3: duration_s must be at most 315,360,000"):
        load(plain)
    with pytest.raises(InputError, match=r"b.csv: the duration must be at most 315,360,000 s"):
        load(other)


@pytest.mark.parametrize(("duration_s", "is_read"), [("0.001", True), ("0.0009", False), ("1e-320", False)])
def test_a_duration_of_less_than_a_millisecond_is_refused(tmp_path: Path, duration_s: str, is_read: bool) -> None:
    """The waiting of such a job is no finite multiple of its duration."""
    path = written(tmp_path, f"submit_s,num_gpus,duration_s\n0,8,60\n5,8,{duration_s}\n")
    if is_read:
        assert [job.duration_s for job in load(path).jobs] == [60, 0.001]
        return
    with pytest.raises(InputError, match=r"the duration must be at least 0.001 s"):
        load(path)


@pytest.mark.parametrize(("rate", "is_read"), [("70.0", True), ("9.9e8", True), ("1e9", False), ("1e400", False)])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_throughput_that_is_no_rate_was_not_measured(tmp_path: Path, rate: str, sign: str, is_read: bool) -> None:
    path = written(tmp_path, "LM\tpython\t--steps\t1\t7000000\t11.5\t2\n", "jobs.trace")
    written(tmp_path, f'{{"v100": {{"(\'LM\', 2)": {{"null": {sign}{rate}}}}}}}', "throughputs.json")
    assert len(load(path).jobs) == (is_read and not sign)
    written(tmp_path, '{"v100": {"(\'LM\', 2)": {"null": NaN}}}', "throughputs.json")
    assert not load(path).jobs
