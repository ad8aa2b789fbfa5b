"""Answers that are not HTTP, have no end or come a byte at a time: one line of words, within the given time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from flatout.errors import InputError
from flatout.probe.redfish import read_redfish
from flatout.probe.redfish_client import RedfishClient
from flatout.schedule.live.usage import read_samples
from flatout.service_answers import read_answer

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer each connection with a function, and yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with closing(connection), suppress(OSError):
                    connection.recv(65536)
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _slowly(connection: socket.socket) -> None:
    connection.sendall(OK + b"\r\n")
    for _ in range(40):
        connection.sendall(b" ")
        time.sleep(0.05)


_SENT = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a cut body": OK + b"Content-Length: 100\r\n\r\n{}",
    "a bad chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a long header": OK + b"a: " + b"b" * 100_000 + b"\r\n\r\n{}",
    "headers without an end": OK + b"a: b\r\n" * 500,
    "nothing": b"",
}


@pytest.mark.parametrize("what", _SENT)
def test_what_is_not_http_is_an_os_error_and_one_line_to_a_user(what: str) -> None:
    with server(lambda connection: connection.sendall(_SENT[what])) as address:
        with pytest.raises(OSError, match=r"\w"):
            read_answer(address, max_bytes=1000, timeout_s=2)
        with pytest.raises(InputError, match=r"the BMC cannot be read: \w"):
            read_redfish(RedfishClient(address, None))
        with pytest.raises(InputError, match=r"does not respond like Prometheus: \w"):
            read_samples(address, now_unix_s=1e6, window_s=100)


def test_an_answer_without_end_and_one_that_trickles_are_left() -> None:
    with (
        server(lambda connection: connection.sendall(OK + b"\r\n" + b" " * 3000)) as address,
        pytest.raises(OSError, match="more than 1000 bytes"),
    ):
        read_answer(address, max_bytes=1000, timeout_s=2)
    began_s = time.monotonic()
    with server(_slowly) as address, pytest.raises(OSError, match="takes too long"):
        read_answer(address, max_bytes=1000, timeout_s=0.2)
    assert time.monotonic() - began_s < 1.5


def test_an_address_that_no_request_can_have_is_an_os_error() -> None:
    for address in ("http://127.0.0.1:1/a b", "http://127.0.0.1:1/\ud800", "http://[::1/"):
        with pytest.raises(OSError, match=r"\w"):
            read_answer(address, max_bytes=1000, timeout_s=1)
