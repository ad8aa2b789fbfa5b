"""Snapshot -> the same without what looks like a secret: passwords of mounts and addresses, tokens, keys."""

from __future__ import annotations

import re
from typing import overload

import msgspec

from flatout.records.snapshot import Output, Snapshot

MASK = "***"
_ASSIGNED = re.compile(
    r"(?i)\b([\w.-]{0,40}(?:password|passwd|passphrase|secret|credentials?|api[_-]?key|access[_-]?key|(?<!eos_)(?<!pad_)token)"
    r"[\w.-]{0,40}\s{0,3}[=:]\s{0,3})[^\s,;&\"']+"
)
_URL = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_KNOWN = re.compile(
    r"\b(?:hf_\w{10,}|sk-[\w-]{10,}|gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_SECRET_NAME = re.compile(r"(?i)password|passwd|secret|credential|token|api_?key|access_?key|private_?key")


# Most lines have none of these, and logs are long.
_HINTS = (
    *("passw", "passphrase", "secret", "credential", "token", "key", "://", "hf_", "sk-", "github_pat", "glpat"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia", "asia", "eyj"),
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
            name: MASK if _SECRET_NAME.search(name) else without_secrets(value) for name, value in environment.items()
        }
    return msgspec.structs.replace(
        content,
        files={path: without_secrets(text) for path, text in content.files.items()},
        problems={path: without_secrets(why) for path, why in content.problems.items()},
        outputs={
            name: Output(
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
    return _KNOWN.sub(MASK, _URL.sub(rf"\1{MASK}@", _ASSIGNED.sub(rf"\1{MASK}", line)))


def _may_hold_one(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)
