"""Descriptions of loads, public traces, and the requests that are made of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.fuzz.readers import OWN

from flatout.errors import InputError
from flatout.serving.load import Load, TracedLoad, read_load
from flatout.serving.requests import held_requests, make_requests, shared_prompt_share
from flatout.serving.traces import read_trace

SAMPLES = OWN / "serving"


def written(tmp_path: Path, text: str, name: str = "load.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azures_trace_is_read_with_its_times_of_day() -> None:
    rows = read_trace(SAMPLES / "azure.csv")
    assert [(row.prompt_tokens, row.output_tokens) for row in rows[:3]] == [(4808, 10), (3180, 8), (110, 27)]
    assert [row.at_s for row in rows[:3]] == pytest.approx([0.0, 0.052, 0.098187], abs=1e-5)


def test_mooncakes_trace_is_read_with_its_blocks() -> None:
    rows = read_trace(SAMPLES / "mooncake.jsonl")
    assert (rows[0].prompt_tokens, rows[0].output_tokens) == (6758, 500)
    assert rows[1].blocks[:3] == (0, 14, 15)


def test_a_csv_of_ones_own_is_sorted_by_time(tmp_path: Path) -> None:
    path = written(tmp_path, "timestamp,prompt_tokens,output_tokens,user\n7.5,10,1,a\n5,20,2,b\n", "t.csv")
    assert [(row.at_s, row.prompt_tokens) for row in read_trace(path)] == [(0.0, 20), (2.5, 10)]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("t.csv", "a,b\n1,2\n", "columns a,b"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n", "has no request"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n1,2\n", "line 2 of"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\nnan,2,3\n", "line 2 of"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n1,-2,3\n", "line 2 of"),
        ("t.jsonl", '{"timestamp": 1}\n', "line 1 of"),
        ("t.jsonl", "[1]\n", "line 1 of"),
        ("load.txt", "", "must be a .toml, .csv or .jsonl"),
        ("load.toml", "requests = 9", "none of `rates`, `rate` and `trace`"),
        ("load.toml", "rate = 1\nrates = [1]", "both `rate` and `rates`"),
        ("load.toml", "rates = [0]", "a number"),
        ("load.toml", "rates = [1]\nprompt_tokens = [9, 3]", "a number or \\[least, most\\]"),
        ("load.toml", "rates = [1]\nprompt_tokens = [9]", "a number or \\[least, most\\]"),
        ("load.toml", "rates = [1]\nrequest = 9", "the nearest one is `requests`"),
        ("load.toml", "rates = [1]\nprompt_tokens = 9\nshared_prefix_tokens = 9", "must be below `prompt_tokens`"),
        ("load.toml", "trace = 'absent.csv'", "cannot be read as a trace"),
        ("load.toml", "rates = [", "not valid TOML"),
    ],
)
def test_another_load_is_refused_with_the_rule(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_load(written(tmp_path, text, name))


def test_a_trace_named_in_a_load_is_beside_it_and_long_rows_are_left_out(tmp_path: Path) -> None:
    written(tmp_path, "timestamp,prompt_tokens,output_tokens\n0,10,1\n1,900,2\n3,30,3\n", "t.csv")
    traced = read_load(written(tmp_path, "trace = 't.csv'\nmost_tokens = 100\nrequests = 4"))
    assert [row.prompt_tokens for row in traced.rows] == [10, 30]
    assert traced.num_left_out == 1
    assert traced.natural_rate_per_s == pytest.approx(1 / 3)


def test_a_trace_is_stretched_to_the_rate(tmp_path: Path) -> None:
    path = written(tmp_path, "timestamp,prompt_tokens,output_tokens\n0,10,1\n1,20,2\n4,30,3\n", "t.csv")
    requests = make_requests(read_load(path), 10.0)
    assert [request.due_s for request in requests] == pytest.approx([0.0, 0.05, 0.2])
    assert [len(request.prompt.split()) for request in requests] == [10, 20, 30]
    assert [request.max_tokens for request in requests] == [1, 2, 3]


def traced(**load: object) -> TracedLoad:
    return TracedLoad(load=Load(rates=(1.0,), **load), path="load.toml")  # type: ignore[arg-type]


def test_requests_are_the_same_each_time_and_their_words_differ_between_rates() -> None:
    load = traced(requests=200, prompt_tokens=(5, 50), output_tokens=(1, 9), shared_prefix_tokens=3)
    first, again, other = make_requests(load, 2.0), make_requests(load, 2.0), make_requests(load, 4.0)
    assert first == again
    assert [request.due_s for request in first] == pytest.approx([2 * request.due_s for request in other])
    assert [request.max_tokens for request in first] == [request.max_tokens for request in other]
    assert not {request.prompt for request in first} & {request.prompt for request in other}
    assert {" ".join(request.prompt.split()[:3]) for request in first} == {" ".join(first[0].prompt.split()[:3])}
    assert not {request.prompt for request in first} & {request.prompt for request in held_requests(load.load)}


@pytest.mark.parametrize(("arrivals", "squared"), [("poisson", 1.0), ("uniform", 0.0), ("bursty", 4.0)])
def test_arrivals_have_the_rate_and_the_variation_of_their_process(arrivals: str, squared: float) -> None:
    due_s = [request.due_s for request in make_requests(traced(requests=4000, arrivals=arrivals, prompt_tokens=1), 5.0)]
    gaps = [after - before for before, after in itertools.pairwise(due_s)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.08)
    assert variance / mean**2 == pytest.approx(squared, rel=0.15, abs=1e-9)


def test_the_shared_share_counts_what_an_earlier_prompt_began_with() -> None:
    assert shared_prompt_share(traced(requests=4, prompt_tokens=10, shared_prefix_tokens=5)) == pytest.approx(15 / 40)
    of_mooncake = read_load(SAMPLES / "mooncake.jsonl")
    total = sum(row.prompt_tokens for row in of_mooncake.rows)
    assert shared_prompt_share(of_mooncake) == pytest.approx(5 * 512 / total)  # block 0 of each but the first
    first, second = (request.prompt.split() for request in make_requests(of_mooncake, 1.0)[:2])
    assert first[:512] == second[:512]
    assert first[512:600] != second[512:600]
