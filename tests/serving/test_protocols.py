"""What the client reads from streams, and the model repository of a trial of Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from flatout.records.serving import Request
from flatout.serving import openai_client
from flatout.serving.client import Ending, TransportError
from flatout.serving.engine import known_engines
from flatout.serving.model_repository import with_model_config
from flatout.serving.openai_client import OpenAiClient, _read
from flatout.serving.trial import ServerError
from flatout.serving.words import parse_command


def read(*lines: str, ending: Ending | None = None) -> tuple[list[str], Ending]:
    pieces: list[str] = []
    ending = ending or Ending(is_whole=False)
    for line in lines:
        ending = _read(line.encode(), pieces.append, ending)
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


async def asked(pieces: Iterable[bytes], path: str) -> object:
    """Return what the client makes of an answer in these pieces."""

    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    answer = httpx.MockTransport(lambda request: httpx.Response(200, content=stream()))
    async with OpenAiClient("http://127.0.0.1:9", model="a") as client:
        await client.close()
        client._http = httpx.AsyncClient(base_url="http://127.0.0.1:9", transport=answer)
        if path == "metrics":
            return await client.metrics("/metrics", ["a"])
        if path == "health":
            return await client.is_healthy("/health")
        read: list[str] = []
        await client.answer(Request(index=0, due_s=0.0, prompt="a", max_tokens=1), read.append)
        return read


def endless(piece: bytes) -> Iterator[bytes]:
    for number in range(10_000):
        assert number < 9_000, "it was read to its end"
        yield piece


def test_answers_without_an_end_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "MOST_METRICS", 100_000)
    monkeypatch.setattr(openai_client, "MOST_LINE", 100_000)
    monkeypatch.setattr(openai_client, "MOST_ANSWER", 200_000)
    assert asyncio.run(asked(endless(b"a 1\n" * 100), "metrics")) is None
    assert asyncio.run(asked(endless(b"a 1\n" * 100), "health")) is False
    for piece in (b"a" * 1000, b": a comment\n" * 100):
        with pytest.raises(TransportError, match="without an end"):
            asyncio.run(asked(endless(piece), "chat"))


def test_a_text_may_have_separators_of_lines_and_any_cut() -> None:
    line = 'data: {"choices":[{"delta":{"content":"a\u2028b\u0085c"}}]}\n'.encode()
    assert asyncio.run(asked([line[index : index + 1] for index in range(len(line))], "chat")) == ["a\u2028b\u0085c"]


def test_a_count_of_tokens_is_none_below_zero() -> None:
    with pytest.raises(TransportError, match="not a chunk"):
        read('data: {"choices":[],"usage":{"completion_tokens":-3}}')


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
