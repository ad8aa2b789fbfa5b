"""Read resources of a Redfish service, and nothing else. In: an address and credentials. Out: JSON objects.

Only GET is used, on paths below /redfish/v1 of the one host that the user named: redirects, and links to other hosts,
are refused, so that the credentials reach nobody else. They are sent over TLS with a verified certificate, or to this
machine itself.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flatout.errors import InputError, UsageError
from flatout.input_files import read_text
from flatout.inside.protocol import Variable
from flatout.service_answers import read_answer

USER, PASSWORD = Variable.REDFISH_USER, Variable.REDFISH_PASSWORD
ROOT = "/redfish/v1"
TIMEOUT_S = 10.0  # of one request
MOST_S = 60.0  # of all requests
MOST_REQUESTS = 500
MOST_BYTES = 1 << 20  # of one answer
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_FORBIDDEN_MODES = stat.S_IRWXG | stat.S_IRWXO
_HINT = f"set {USER} and {PASSWORD}, or pass --redfish-credentials FILE with one line `user:password` and mode 0600"


class NotRead(Exception):  # noqa: N818 - not an error of the program: a part of the tree is missing
    """A resource could not be read; the text says why."""


def credentials(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return the user and the password of the file, else of the environment; None without both."""
    if file is None:
        user, password = environment.get(USER), environment.get(PASSWORD)
        return (user, password) if user and password else None
    try:
        mode = file.stat().st_mode
        text = read_text(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError:  # whose text quotes the file
        raise InputError(f"{file} is not valid UTF-8", hint=_HINT) from None
    if mode & _FORBIDDEN_MODES:
        raise InputError(f"{file} holds a password and may be read by others", hint=f"chmod 600 {file}")
    user, has_password, password = text.strip().partition(":")
    if not user or not has_password or "\n" in password:
        raise InputError(f"{file} must have one line `user:password`", hint=_HINT)
    return user, password


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


class RedfishClient:
    """Reads one service. Raise UsageError for an address that would expose the credentials."""

    def __init__(self, address: str, given: tuple[str, str] | None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(
                "`--redfish` must be https://HOST without a user or a password", hint="e.g. --redfish https://bmc-n7"
            )
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError(
                "`--redfish` must use https: over http, the password is sent unencrypted",
                hint=f"--redfish https://{parts.netloc}",
            )
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if given is not None:
            token = base64.b64encode(":".join(given).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        handlers = (_NoRedirects(), urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers, urllib.request.HTTPSHandler(context=_verified()))
        self._deadline_s = time.monotonic() + MOST_S
        self._num_requests = 0

    def read(self, path: str) -> dict[str, Any]:
        """Return a resource. Raise NotRead, or InputError where nothing could be read at all."""
        if not (path == ROOT or path.startswith(f"{ROOT}/")) or ".." in path:
            raise NotRead("a link leaves the Redfish tree")
        self._num_requests += 1
        if self._num_requests > MOST_REQUESTS or time.monotonic() > self._deadline_s:
            raise NotRead(f"more than {MOST_REQUESTS} requests or {MOST_S:.0f} s")
        request = urllib.request.Request(self._origin + path, headers=self._headers)
        try:
            body = read_answer(request, max_bytes=MOST_BYTES, timeout_s=TIMEOUT_S, open_url=self._opener.open)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise InputError(f"the BMC refuses these credentials (HTTP {error.code})", hint=_HINT) from error
            raise NotRead(f"HTTP {error.code}") from error
        except OSError as error:
            raise NotRead(str(error)) from error
        return _object(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotRead("its answer is not valid JSON") from error
    if not isinstance(value, dict):
        raise NotRead("its answer is not a JSON object")
    return value


def _verified() -> ssl.SSLContext:
    return ssl.create_default_context()
