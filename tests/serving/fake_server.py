"""`python fake_server.py --port N [options]`: the simulated engine in real time behind OpenAI's protocol.

It speaks just enough HTTP for a client: health, models, metrics, and streamed answers. With FAKE_FAILS=1 it ends at
once, with FAKE_SLEEPS=1 it never listens, and with FAKE_CHILD=1 it starts a child in another session.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time

from fake_engine import FakeEngine, RefusedError


class Server:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split()
        length = 0
        while (header := (await reader.readline()).decode().strip()) != "":
            name, _, value = header.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = await reader.readexactly(length)
        if method == "POST":
            await self._answer(json.loads(body), writer)
        else:
            self._page(path, writer)
        await writer.drain()
        return True

    def _page(self, path: str, writer: asyncio.StreamWriter) -> None:
        pages = {
            "/health": "{}",
            "/metrics": self.engine.metrics(),
            "/v1/models": json.dumps({"data": [{"id": "fake"}]}),
        }
        text = pages.get(path)
        status = "404 Not Found" if text is None else "200 OK"
        data = (text or "").encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def _answer(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        messages = body["messages"]
        assert isinstance(messages, list)

        def chunk(data: object) -> None:
            text = data if isinstance(data, str) else json.dumps(data)
            line = f"data: {text}\n\n".encode()
            writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

        def on_token(text: str) -> None:
            chunk({"choices": [{"index": 0, "delta": {"content": text}}]})

        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            tokens, prompt = await self.engine.generate(
                str(messages[0]["content"]), int(str(body["max_tokens"])), on_token
            )
        except RefusedError:
            chunk({"error": {"message": "too many requests wait"}})
        else:
            chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
            chunk({"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": prompt}})
            chunk("[DONE]")
        writer.write(b"0\r\n\r\n")


async def main() -> None:
    engine = FakeEngine(sys.argv[1:], start=os.getpid())
    engine.run()
    server = Server(engine)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", engine.options.port)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    if os.environ.get("FAKE_FAILS"):
        sys.exit("the fake server was told to fail")
    if os.environ.get("FAKE_SLEEPS"):
        time.sleep(600)
    if os.environ.get("FAKE_CHILD"):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    asyncio.run(main())
