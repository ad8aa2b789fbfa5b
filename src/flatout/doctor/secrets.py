"""Snapshot -> the same without what looks like a secret: passwords of mounts and addresses, tokens, keys."""

from __future__ import annotations

import re
from typing import overload

import msgspec

from flatout.records.snapshot import Snapshot
from flatout.secrets import BEARER, KNOWN_SECRETS, MASK, URL_PASSWORD, names_a_secret

_ASSIGNED = re.compile(
    r"(?i)\b([\w.-]{0,40}(?:password|passwd|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|(?<!eos_)(?<!pad_)token)"
    r"[\w.-]{0,40}\s{0,3}[=:]\s{0,3})[^\s,;&\"']+"
)
# Most lines have none of these, and logs are long.
_HINTS = (
    *("passw", "passphrase", "secret", "credential", "token", "key", "://", "hf_", "sk-", "github_pat", "glpat"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia", "asia", "eyj", "xox", "authorization"),
)


@overload
def without_secrets(content: str) -> str: ...
@overload
def without_secrets(content: Snapshot) -> Snapshot: ...
def without_secrets(content: str | Snapshot) -> str | Snapshot:
    """What is written into a bundle, and what checks may quote."""
    if isinstance(content, str):
        if not _may_hold_one(content):
            return content
        return "".join(map(_masked_line, content.splitlines(keepends=True)))
    environment = content.environment
    if environment is not None:
        environment = {
            name: MASK if names_a_secret(name) else without_secrets(value) for name, value in environment.items()
        }
    return msgspec.structs.replace(
        content,
        files={path: without_secrets(text) for path, text in content.files.items()},
        problems={path: without_secrets(why) for path, why in content.problems.items()},
        outputs={
            name: msgspec.structs.replace(
                output,
                text=None if output.text is None else without_secrets(output.text),
                problem=without_secrets(output.problem),
            )
            for name, output in content.outputs.items()
        },
        environment=environment,
    )


def _masked_line(line: str) -> str:
    if not _may_hold_one(line):
        return line
    line = URL_PASSWORD.sub(rf"\1{MASK}@", _ASSIGNED.sub(rf"\1{MASK}", line))
    return KNOWN_SECRETS.sub(MASK, BEARER.sub(rf"\1 {MASK}", line) if "authorization" in line.lower() else line)


def _may_hold_one(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)
