"""Answers of services, as files that the fuzzer damages: a BMC's resources, Prometheus', and those of a model's server.

In: a folder with one file for each answer, by its path in the address. Out: what Flatout's client makes of them. No
connection is opened: what a damaged connection does is tested with the clients.
"""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import httpx
from tests.fuzz.samples import Sample
from tests.watch.test_bmc import mockup, old_mockup

from flatout.errors import InputError
from flatout.probe.redfish import read_redfish
from flatout.probe.redfish_client import RedfishClient
from flatout.records.serving import Request
from flatout.schedule.live.usage import read_samples
from flatout.serving.client import TransportError
from flatout.serving.openai_client import OpenAiClient
from flatout.watch.health.bmc_signs import bmc_signs

_JSON, _TEXT = ".json", ".txt"
_NAMES = ("queue_depth", "busy")
_EVENTS = (
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {"content": "\u2028b"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 5}},
)


def redfish() -> list[Sample]:
    return [_sample(tree) for tree in (mockup(), old_mockup())]


def _sample(tree: dict[str, Any]) -> Sample:
    return Sample({f"{path.strip('/')}{_JSON}": json.dumps(answer).encode() for path, answer in tree.items()})


def read_bmc(folder: Path) -> object:
    client = RedfishClient("http://127.0.0.1:9", None)
    with patch.object(client._opener, "open", _opener(folder)):
        return bmc_signs(read_redfish(client))


def prometheus() -> list[Sample]:
    series = {"metric": {"Hostname": "a", "gpu": "2"}, "values": [[1e6 - 30, "0"], [1e6 - 15, "50"]]}
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    return [_sample({"api/v1/query": answer})]


def read_prometheus(folder: Path) -> object:
    with patch("urllib.request.urlopen", _opener(folder)):
        return read_samples("http://127.0.0.1:9", now_unix_s=1e6, window_s=100)


def servers() -> list[Sample]:
    stream = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in _EVENTS) + "data: [DONE]\n\n"
    metrics = '# HELP busy x\nqueue_depth{model="a"} 3\nqueue_depth{model="b"} 1e2 1700000000\nbusy 0.5\n'
    texts = {
        f"v1/chat/completions{_TEXT}": stream,
        f"metrics{_TEXT}": metrics,
        f"v1/models{_JSON}": '{"data": [{"id": "a"}]}',
    }
    return [Sample({path: text.encode() for path, text in texts.items()})]


def read_server(folder: Path) -> object:
    try:
        return asyncio.run(_asked(folder))
    except TransportError as error:  # which a tuning counts as a failed request
        raise InputError(str(error)) from error


async def _asked(folder: Path) -> object:
    request = Request(index=0, due_s=0.0, prompt="a", max_tokens=2)
    pieces: list[str] = []

    def answered(asked: httpx.Request) -> httpx.Response:
        try:
            return httpx.Response(200, content=_answer(folder, asked.url.path))
        except urllib.error.URLError:
            return httpx.Response(404)

    async with OpenAiClient("http://127.0.0.1:9") as client:
        await client.close()
        client._http = httpx.AsyncClient(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(answered))
        await client.find_model()
        readings = await client.metrics("/metrics", _NAMES)
        ending = await client.answer(request, pieces.append)
    return readings, ending, pieces


def _opener(folder: Path) -> Callable[..., io.BytesIO]:
    def opened(request: Any, timeout: float) -> io.BytesIO:
        address = request if isinstance(request, str) else request.full_url
        return io.BytesIO(_answer(folder, urlsplit(address).path))

    return opened


def _answer(folder: Path, path: str) -> bytes:
    for suffix in (_JSON, _TEXT):
        with suppress(OSError, ValueError):  # a name that no file can have
            file = folder / f"{path.strip('/')}{suffix}"
            if file.is_file():
                return file.read_bytes()
    raise urllib.error.URLError("it is not there")
