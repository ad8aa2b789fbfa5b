from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.report import builder

from flatout import __version__
from flatout.errors import InputError
from flatout.records.diagnosis import PART_NAMES, Diagnosis
from flatout.report.json import diagnosis_json, read_diagnosis

COMMAND = ["flatout", "diagnose", "traces", "--json"]


@pytest.fixture(params=sorted(builder.ALL))
def diagnosis(request: pytest.FixtureRequest) -> Diagnosis:
    return builder.ALL[request.param]()


def test_keys_are_those_of_the_contract_in_its_order() -> None:
    found = json.loads(diagnosis_json(builder.straggler(), COMMAND))
    assert list(found) == [
        *("schema", "version", "tool_version", "command"),
        *("job", "ranks", "blame", "findings", "data_quality", "communication"),
    ]
    assert found["schema"] == "flatout/diagnosis"
    assert found["version"] == 2
    assert found["tool_version"] == __version__
    assert found["command"] == COMMAND
    assert {"num_ranks", "world_size", "missing_ranks", "device", "num_steps"} <= set(found["job"])
    rank = found["ranks"][2]
    assert {"rank", "window_s", "num_steps", "parts_s", "steps"} <= set(rank)
    assert list(rank["parts_s"]) == list(rank["steps"][0]["parts_s"]) == list(PART_NAMES)
    assert {"step", "window_s", "parts_s"} <= set(rank["steps"][0])
    assert set(found["blame"][0]) == {"waiting_rank", "blamed_rank", "part", "wait_s"}
    assert list(found["findings"][0]) == [
        *("code", "name", "title", "ranks", "cost_s_per_step", "share_of_step"),
        *("evidence", "changes", "safety", "confidence"),
    ]
    quality = json.loads(diagnosis_json(builder.no_steps(), COMMAND))["data_quality"]
    assert [set(note) for note in quality] == [{"rank", "problem", "effect", "max_confidence"}] * 2


def test_parts_sum_to_the_window(diagnosis: Diagnosis) -> None:
    for rank in json.loads(diagnosis_json(diagnosis, COMMAND))["ranks"]:
        for span in (rank, *rank["steps"]):
            assert sum(span["parts_s"].values()) == pytest.approx(span["window_s"], abs=1e-6)


@pytest.mark.parametrize("pretty", [True, False])
def test_what_is_written_is_read_back(diagnosis: Diagnosis, pretty: bool, tmp_path: Path) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_bytes(diagnosis_json(diagnosis, COMMAND, pretty=pretty))
    assert msgspec.to_builtins(read_diagnosis(path)) == msgspec.to_builtins(diagnosis)


def test_a_diagnosis_of_version_1_is_read_with_its_rates_as_those_of_the_regular_step(tmp_path: Path) -> None:
    content = json.loads(diagnosis_json(builder.straggler(), COMMAND))
    content["version"] = 1
    content["job"] |= {"untraced_step_s": 0.1, "samples_per_s": 320.0, "tokens_per_s": None, "mfu": 0.4, "reasons": {}}
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(content))
    job = read_diagnosis(path).job
    assert (job.samples_per_s, job.tokens_per_s, job.mfu) == (None, None, None)
    assert (job.regular_step_s, job.regular_samples_per_s, job.regular_mfu) == (0.1, 320.0, 0.4)
    assert isinstance(job.reasons, dict) and "version 1" in job.reasons["samples_per_s"]


def test_a_trace_of_version_1_has_no_rates(tmp_path: Path) -> None:
    content = json.loads(diagnosis_json(builder.straggler(), COMMAND))
    content["version"] = 1
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(content))
    assert read_diagnosis(path).job.samples_per_s is msgspec.UNSET


def test_numpy_evidence_is_plain_json() -> None:
    evidence = {"late_by_s": np.float64(0.5), "ranks": np.array([1, 2]), "num_steps": np.int64(3)}
    diagnosis = builder.diagnosis_of([], findings=[builder.finding("straggler", 0.5, 0.1, evidence=evidence)])
    found = json.loads(diagnosis_json(diagnosis, COMMAND))["findings"][0]["evidence"]
    assert found == {"late_by_s": 0.5, "ranks": [1, 2], "num_steps": 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a diagnosis"),
        (b"not json", "is not a diagnosis"),
        (b"[]", "is not a diagnosis"),
        (b"\xff\xfe", "is not a diagnosis"),
        (b"[" * 100_000, "is not a diagnosis"),
        (b'{"traceEvents": []}', "is not a diagnosis"),
        (b'{"schema": "flatout/tuning", "version": 1}', "must have the schema `flatout/diagnosis`"),
        (b'{"schema": "flatout/diagnosis", "version": 3}', "version 3"),
        (b'{"schema": "flatout/diagnosis", "version": 2}', "breaks the schema"),
        (b'{"schema": "flatout/diagnosis", "version": 1}', "breaks the schema"),
    ],
)
def test_what_is_no_diagnosis_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "diagnosis.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_diagnosis(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: no such file"):
        read_diagnosis(tmp_path / "nothing.json")


def test_a_missing_part_is_an_input_error(tmp_path: Path) -> None:
    content = json.loads(diagnosis_json(builder.straggler(), COMMAND))
    del content["ranks"][1]["steps"][0]["parts_s"]["bubble"]
    path = tmp_path / "diagnosis.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"`parts_s` of rank 1 .* missing or unknown: bubble"):
        read_diagnosis(path)
