"""Read the answer of a service over HTTP, of bounded size and in a bounded time.

In: a request. Out: the bytes of the answer. Whatever goes wrong is an OSError whose text says why, also what Python's
client raises for a line that is not HTTP, or for an address with a space.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

_CHUNK_BYTES = 1 << 16


def read_answer(
    request: urllib.request.Request | str,
    *,
    max_bytes: int,
    timeout_s: float,
    open_url: Callable[..., Any] | None = None,
) -> bytes:
    """Return the body of an answer. Raise OSError if it has more than `max_bytes`, or takes longer than `timeout_s`.

    `urllib.error.HTTPError` is one of them, with the status that the service answered.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        with (open_url or urllib.request.urlopen)(request, timeout=timeout_s) as answer:
            return _body(answer, max_bytes, deadline_s)
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        raise OSError(f"it does not answer in HTTP: {str(error) or type(error).__name__}") from error


def _body(answer: Any, max_bytes: int, deadline_s: float) -> bytes:
    body = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):  # `read` waits for all of it, however slowly it comes
        body += chunk
        if len(body) > max_bytes:
            raise OSError(f"its answer has more than {max_bytes} bytes")
        if time.monotonic() > deadline_s:
            raise OSError("its answer takes too long")
    if getattr(answer, "length", None):  # the bytes of the announced length that did not come
        raise OSError("its answer was cut")
    return bytes(body)
