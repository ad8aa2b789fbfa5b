"""Send requests to a server that speaks OpenAI's protocol or Triton's, streamed, and read its metrics and health.

In: a URL, the model's name, the endpoint. Out: a transport (`client.py`). httpx is imported here alone, and when it is
used: it is the extra `flatout[serve]`. Answers are greedy (`temperature` 0), so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from flatout.errors import InputError
from flatout.records.serving import Request
from flatout.serving.client import Ending, OnPiece, TransportError
from flatout.serving.exposition import Reading, read_metrics

if TYPE_CHECKING:
    import httpx

MOST_BODY = 300  # characters of a server's error that are shown
MOST_METRICS = 8 << 20  # bytes
QUICK_S = 10.0  # for health, models and metrics


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    text_output: str | None = None  # Triton
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


_CHUNKS = msgspec.json.Decoder(_Chunk)


def check_httpx() -> None:
    """Raise InputError if httpx is not installed."""
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise InputError(
            "tuning a server needs httpx, which is not installed", hint="pip install 'flatout[serve]'"
        ) from None


class OpenAiClient:
    """A connection to one server; use it in an `async with` block."""

    def __init__(
        self, url: str, *, model: str | None = None, endpoint: str = "chat", body: Mapping[str, Any] | None = None
    ) -> None:
        import httpx

        self._httpx = httpx
        self._url = url
        self._model = model
        self._endpoint = endpoint
        self._body = dict(body or {})
        # The server is on this machine: a proxy of the environment is not meant for it.
        self._http = httpx.AsyncClient(
            base_url=url, timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None)
        )

    async def __aenter__(self) -> OpenAiClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    async def is_healthy(self, path: str) -> bool:
        """Whether the server answers its health path with success."""
        try:
            response = await self._http.get(path, timeout=QUICK_S)
        except self._httpx.HTTPError:
            return False
        return bool(response.is_success)

    async def find_model(self) -> str:
        """Return the name of the server's first model, unless it was given. Raise TransportError if it has none."""
        if self._model is not None:
            return self._model
        if self._endpoint == "generate":
            raise TransportError('the endpoint "generate" needs the name of the model as `model` in the load')
        try:
            response = await self._http.get("/v1/models", timeout=QUICK_S)
            models = msgspec.json.decode(response.content, type=_Models)
        except (self._httpx.HTTPError, msgspec.DecodeError) as error:
            raise TransportError(f"/v1/models cannot be read: {_words(error)}") from error
        if not models.data:
            raise TransportError("/v1/models names no model: name it as `model` in the load")
        self._model = models.data[0].id
        return self._model

    async def metrics(self, url: str, names: Collection[str]) -> dict[str, Reading] | None:
        """Return the metrics of these names; None if the server has no such page."""
        try:
            response = await self._http.get(url, timeout=QUICK_S)
        except self._httpx.HTTPError:
            return None
        if not response.is_success or len(response.content) > MOST_METRICS:
            return None
        return read_metrics(response.text, names)

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        """Send a request, streamed. Raise TransportError if the server refuses it, or the connection breaks."""
        path, own = self._prompt(request)
        body = {"max_tokens": request.max_tokens, "temperature": 0, "stream": True, **own, **self._body}
        ending = Ending(is_whole=self._endpoint == "generate")  # whose streams have no mark of their end
        try:
            async with self._http.stream("POST", path, json=body) as response:
                await self._check(response)
                async for line in response.aiter_lines():
                    ending = _read(line, on_piece, ending)
        except self._httpx.HTTPError as error:
            raise TransportError(_words(error)) from error
        return ending

    def _prompt(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the path, and the fields of the body that its protocol has."""
        if self._endpoint == "generate":
            return f"/v2/models/{self._model}/generate_stream", {"text_input": request.prompt}
        common = {"model": self._model, "stream_options": {"include_usage": True}}
        if self._endpoint == "completions":
            return "/v1/completions", {"prompt": request.prompt, **common}
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": request.prompt}], **common}

    async def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        text = (await response.aread()).decode(errors="replace")[:MOST_BODY]
        raise TransportError(f"the server answered {response.status_code}: {' '.join(text.split())}")


def _read(line: str, on_piece: OnPiece, ending: Ending) -> Ending:
    """Read one line of a stream, and return what is known of the answer's end."""
    if not line.startswith("data:"):
        return ending
    data = line[len("data:") :].strip()
    if data == "[DONE]":
        return msgspec.structs.replace(ending, is_whole=True)
    try:
        chunk = _CHUNKS.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TransportError(f"the stream has a line that is not a chunk: {error}") from error
    if chunk.error is not None:
        raise TransportError(f"the stream ended with an error: {str(chunk.error)[:MOST_BODY]}")
    if chunk.text_output:
        on_piece(chunk.text_output)
    for choice in chunk.choices:
        text = _text(choice)
        if text:
            on_piece(text)
        if choice.finish_reason is not None:
            ending = msgspec.structs.replace(ending, is_whole=True)
    if chunk.usage is not None:
        ending = msgspec.structs.replace(
            ending, num_tokens=chunk.usage.completion_tokens, num_prompt_tokens=chunk.usage.prompt_tokens
        )
    return ending


def _text(choice: _Choice) -> str | None:
    if choice.delta is None:
        return choice.text
    return choice.delta.content or choice.delta.reasoning_content


def _words(error: Exception) -> str:
    """Return an error in one line; httpx has errors without a text."""
    return " ".join(str(error).split()) or type(error).__name__
