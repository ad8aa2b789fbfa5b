"""Send requests to a server that speaks OpenAI's protocol or Triton's, streamed, and read its metrics and health.

In: a URL, the model's name, the endpoint. Out: a transport (`client.py`). Only this module imports httpx, and only
when it is used, because it belongs to the extra `flatout[serve]`. Answers are greedy (`temperature` 0), so that they
can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json
from flatout.records.serving import Request
from flatout.serving.client import Ending, OnPiece, TransportError
from flatout.serving.exposition import Reading, read_metrics

if TYPE_CHECKING:
    import httpx

MOST_BODY = 300  # characters of a server's error that are shown
MOST_METRICS = 8 << 20  # bytes
MOST_LINE = 1 << 20  # bytes of one line of a stream
MOST_ANSWER = 64 << 20  # bytes of one stream
MOST_TOKENS = 1 << 31  # no server counts more
QUICK_S = 10.0  # for health, models and metrics


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: _Count | None = None
    prompt_tokens: _Count | None = None


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
            return await self._page(path, MOST_METRICS) is not None
        except TransportError:
            return False

    async def find_model(self) -> str:
        """Return the name of the server's first model, unless it was given. Raise TransportError if it has none."""
        if self._model is not None:
            return self._model
        if self._endpoint == "generate":
            raise TransportError('the endpoint "generate" needs the name of the model as `model` in the load')
        try:
            page = await self._page("/v1/models", MOST_METRICS)
            if page is None:
                raise TransportError("the server refuses it; name the model as `model` in the load")
            models = decode_json(page, _Models)
        except (TransportError, msgspec.DecodeError) as error:
            raise TransportError(f"/v1/models cannot be read: {_words(error)}") from error
        if not models.data:
            raise TransportError("/v1/models names no model: name it as `model` in the load")
        self._model = models.data[0].id
        return self._model

    async def metrics(self, url: str, names: Collection[str]) -> dict[str, Reading] | None:
        """Return the metrics of these names; None if the server has no such page."""
        try:
            page = await self._page(url, MOST_METRICS)
        except TransportError:
            return None
        return None if page is None else read_metrics(page.decode(errors="replace"), names)

    async def _page(self, url: str, most_bytes: int) -> bytes | None:
        """Return a page; None if the server refuses it. Raise TransportError if it does not answer, or too much."""
        page = bytearray()
        try:
            async with asyncio.timeout(QUICK_S), self._http.stream("GET", url, timeout=QUICK_S) as response:
                async for piece in response.aiter_bytes():
                    page += piece
                    if len(page) > most_bytes:
                        raise TransportError(f"{url} has more than {most_bytes >> 20} MiB")
        except (self._httpx.HTTPError, self._httpx.InvalidURL, TimeoutError) as error:
            raise TransportError(_words(error)) from error
        return bytes(page) if response.is_success else None

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        """Send a request, streamed. Raise TransportError if the server refuses it, or the connection breaks."""
        path, own = self._prompt(request)
        body = {"max_tokens": request.max_tokens, "temperature": 0, "stream": True, **own, **self._body}
        ending = Ending(is_whole=self._endpoint == "generate")  # whose streams have no mark of their end
        try:
            async with self._http.stream("POST", path, json=body) as response:
                await self._check(response)
                async for line in _lines(response.aiter_bytes()):
                    ending = _read(line, on_piece, ending)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
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
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > 4 * MOST_BODY:
                break
        text = body.decode(errors="replace")[:MOST_BODY]
        raise TransportError(f"the server answered {response.status_code}: {' '.join(text.split())}")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Raise TransportError if a line or the whole is too long.

    A line ends at a line feed alone: httpx would also end it at other separators, which a text in it may hold.
    """
    rest = b""
    num_bytes = 0
    async for piece in pieces:
        num_bytes += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MOST_LINE or num_bytes > MOST_ANSWER:
            raise TransportError("the stream has a line or an answer without an end")
    yield rest


def _read(line: bytes, on_piece: OnPiece, ending: Ending) -> Ending:
    """Read one line of a stream, and return what is known of the answer's end."""
    if not line.startswith(b"data:"):
        return ending
    data = line[len(b"data:") :].strip()
    if data == b"[DONE]":
        return msgspec.structs.replace(ending, is_whole=True)
    try:
        chunk = _CHUNKS.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
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
