"""What the client reads from streams, and the model repository of a trial of Triton."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.serving.client import Ending, TransportError
from flatout.serving.engine import known_engines
from flatout.serving.model_repository import with_model_config
from flatout.serving.openai_client import _read
from flatout.serving.trial import ServerError
from flatout.serving.words import parse_command


def read(*lines: str, ending: Ending | None = None) -> tuple[list[str], Ending]:
    pieces: list[str] = []
    ending = ending or Ending(is_whole=False)
    for line in lines:
        ending = _read(line, pieces.append, ending)
    return pieces, ending


def test_a_chat_is_read_with_its_counts_and_its_end() -> None:
    pieces, ending = read(
        'data: {"choices":[{"delta":{"role":"assistant"},"index":0}]}',
        "",
        ": a comment",
        'data: {"choices":[{"delta":{"content":"a"}}]}',
        'data:{"choices":[{"delta":{"reasoning_content":"b","content":null}}]}',
        'data: {"choices":[{"delta":{},"finish_reason":"length"}]}',
        'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":7,"total_tokens":10}}',
    )
    assert pieces == ["a", "b"]
    assert ending == Ending(num_tokens=3, num_prompt_tokens=7, is_whole=True)


def test_completions_and_tritons_streams_are_read() -> None:
    assert read('data: {"choices":[{"text":"a","finish_reason":null}]}', "data: [DONE]") == (["a"], Ending())
    assert read('data: {"model_name":"m","text_output":"a"}', ending=Ending()) == (["a"], Ending())


def test_a_stream_without_its_end_is_not_whole() -> None:
    assert not read('data: {"choices":[{"text":"a"}]}')[1].is_whole


@pytest.mark.parametrize(
    ("line", "what"),
    [('data: {"error":{"message":"no"}}', "ended with an error"), ("data: {", "not a chunk"), ("data: []", "chunk")],
)
def test_an_error_within_a_stream_fails_the_request(line: str, what: str) -> None:
    with pytest.raises(TransportError, match=what):
        read(line)


TRITON = known_engines()["triton"]


def repository(tmp_path: Path, config: str) -> Path:
    models = tmp_path / "models"
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "1" / "model.onnx").write_text("weights")
    (models / "m" / "config.pbtxt").write_text(config)
    (models / "other").mkdir()
    return models


def test_a_trial_of_triton_has_a_repository_of_links_with_its_config(tmp_path: Path) -> None:
    models = repository(tmp_path, 'name: "m"\n')
    command = parse_command(f"tritonserver --model-repository={models}")
    changed = with_model_config(command, TRITON, "m", ["dynamic_batching { }"], tmp_path / "trial")
    assert changed.words == ("tritonserver", "--model-repository", str(tmp_path / "trial"))
    assert (tmp_path / "trial" / "m" / "config.pbtxt").read_text() == 'name: "m"\ndynamic_batching { }\n'
    assert (tmp_path / "trial" / "m" / "1" / "model.onnx").read_text() == "weights"
    assert (tmp_path / "trial" / "other").is_dir()
    assert (models / "m" / "config.pbtxt").read_text() == 'name: "m"\n'


def test_a_config_that_has_the_block_is_not_changed(tmp_path: Path) -> None:
    models = repository(tmp_path, "dynamic_batching { }\n")
    command = parse_command(f"tritonserver --model-repository {models}")
    with pytest.raises(ServerError, match="has dynamic_batching already"):
        with_model_config(command, TRITON, "m", ["dynamic_batching { }"], tmp_path / "trial")
    with pytest.raises(ServerError, match="need a repository in the command and the model's name"):
        with_model_config(command, TRITON, None, ["dynamic_batching { }"], tmp_path / "other")
    with pytest.raises(ServerError, match="cannot be read"):
        with_model_config(command, TRITON, "absent", ["x { }"], tmp_path / "third")
