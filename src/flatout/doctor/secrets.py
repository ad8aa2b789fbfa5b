"""Mask likely secrets in a Snapshot: passwords in mount options and URLs, tokens, keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

import msgspec

from flatout.records.snapshot import Output, Snapshot
from flatout.secrets import BEARER, KNOWN_SECRETS, MASK, URL_PASSWORD, names_a_secret

_ASSIGNED = re.compile(
    r"(?i)\b([\w.-]{0,40}(?:password|passwd|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|(?<!eos_)(?<!pad_)token)"
    r"[\w.-]{0,40}\s{0,3}[=:]\s{0,3})[^\s,;&\"']+"
)
# A quick test first: logs are long, and most lines contain none of these.
_HINTS = (
    *("passw", "passphrase", "secret", "credential", "token", "key", "://", "hf_", "sk-", "github_pat", "glpat"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia", "asia", "eyj", "xox", "authorization"),
)


@overload
def without_secrets(content: str) -> str: ...
@overload
def without_secrets(content: Snapshot) -> Snapshot: ...
def without_secrets(content: str | Snapshot) -> str | Snapshot:
    """Mask the secrets in a text or an entire Snapshot before it is written to a bundle or quoted by checks."""
    if isinstance(content, str):
        return _masked_text(content)
    return msgspec.structs.replace(
        content,
        files=_masked_values(content.files),
        problems=_masked_values(content.problems),
        outputs={name: _masked_output(output) for name, output in content.outputs.items()},
        environment=None if content.environment is None else _masked_environment(content.environment),
    )


def _masked_values(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: _masked_text(text) for name, text in texts.items()}


def _masked_output(output: Output) -> Output:
    text = None if output.text is None else _masked_text(output.text)
    return msgspec.structs.replace(output, text=text, problem=_masked_text(output.problem))


def _masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if names_a_secret(name) else _masked_text(value) for name, value in environment.items()}


def _masked_text(text: str) -> str:
    if not _may_hold_secret(text):
        return text
    return "".join(map(_masked_line, text.splitlines(keepends=True)))


def _masked_line(line: str) -> str:
    if not _may_hold_secret(line):
        return line
    line = _ASSIGNED.sub(rf"\1{MASK}", line)
    line = URL_PASSWORD.sub(rf"\1{MASK}@", line)
    if "authorization" in line.lower():
        line = BEARER.sub(rf"\1 {MASK}", line)
    return KNOWN_SECRETS.sub(MASK, line)


def _may_hold_secret(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)
