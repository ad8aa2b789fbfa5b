"""Mask the secrets in a command's words, for where the command is written or shown; what is run is never masked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.secrets.names import SecretKind, secret_kind
from flatout.secrets.programs import secret_spans
from flatout.secrets.shapes import MASK
from flatout.secrets.text import masked_text
from flatout.secrets.values import is_secret_value

# `NAME=value`, `--name=value`, and the overrides of Hydra: `+a.b=value`, `++a.b=value`, `~a.b=value`, `a@b=value`.
_ASSIGNMENT = re.compile(r"(?s)([+~]{0,3}/?(?:--?)?)([A-Za-z_][\w.@/:\[\]-]*)(=)(.*)")
_HEADER = re.compile(r"(?s)()([A-Za-z][\w-]*)(:\s*)(.*)")
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "ssh", "pdsh", "clush"}
_LINE = re.compile(r"(?:[A-Za-z_]\w*=\S+\s+)+[\w./-]+\s")
_SETTERS = {"set", "-env", "-genv", "--setenv"}
_WHITE = re.compile(r"\s")
_UNDERSCORED = re.compile(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+")


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Mask known secrets, and values that follow a secret's name (`--api-key X`, `HF_TOKEN=X`)."""
    words = [word.encode("utf-8", "backslashreplace").decode() for word in command]  # a file name need not be UTF-8
    masked: list[str] = []
    before: tuple[SecretKind, str] | None = None
    programs = {word.rpartition("/")[2] for word in words}
    runs_shell = _SHELLS.intersection(programs)
    for word in _without_arguments_of_programs(words):
        if before is not None and not word.startswith("--") and word != MASK:
            kind, name = before
            is_secret = kind is not SecretKind.PERHAPS and is_secret_value(kind, name, word)
            masked.append(MASK if is_secret else masked_word(word))
            before = None
            continue
        following = words[len(masked) + 1] if len(masked) + 1 < len(words) else ""
        before = _named_by(word, masked) or _named_in_pair(word, following)
        if "rclone" in programs and "," in word and not word.startswith("-"):
            masked.append(_masked_remote(word))
        else:
            masked.append(masked_text(word) if runs_shell and _is_line(word) else masked_word(word))
    return tuple(masked)


def _masked_remote(word: str) -> str:
    """Mask the secrets in an argument of rclone, which may be a remote with options: `remote,user=me,pass=X:path`."""
    program = "rclone "
    return masked_text(program + word)[len(program) :]


def masked_word(word: str) -> str:
    """Mask the secrets in one argument."""
    for pattern in (_ASSIGNMENT, _HEADER):
        match = pattern.fullmatch(word)
        if match is None:
            continue
        is_path = "/" in match[2] and "/" in match[4]  # `s3://bucket/key=a/part-0`
        kind = None if is_path else secret_kind(match[2])
        is_authorization = pattern is _HEADER and kind is SecretKind.AUTH
        is_plain = not match[4].startswith(("{", "[", "//", "'", '"')) and not is_authorization
        if kind is not None and is_plain and is_secret_value(kind, match[2], match[4]):
            return f"{match[1]}{match[2]}{match[3]}{MASK}"
    return masked_text(word)


def _is_line(word: str) -> bool:
    """Whether an argument of a shell or of ssh is a command line, as in `sh -c 'HF_TOKEN=X python train.py'`."""
    return _LINE.match(word) is not None


def _named_by(word: str, before: Sequence[str]) -> tuple[SecretKind, str] | None:
    """Return the kind and the name of the secret that the next argument is; None if this argument names none.

    It does as an option (`--api-key`), as a header (`X-Api-Key:`), and after a word that sets it (`aws configure set
    NAME`, `mpiexec -genv NAME`).
    """
    is_set = bool(before) and before[-1] in _SETTERS and re.fullmatch(r"[A-Za-z_][\w.-]*", word) is not None
    if not is_set and not re.fullmatch(r"--?[A-Za-z][\w.-]*|[A-Za-z][\w-]*-[\w-]*:", word):
        return None
    name = word.strip("-:")
    kind = secret_kind(name)
    return (kind, name) if kind is not None else None


def _named_in_pair(word: str, following: str) -> tuple[SecretKind, str] | None:
    """Return what `_named_by` does, for a name such as `secret_access_key` before a value that no other word can be."""
    kind = secret_kind(word) if _UNDERSCORED.fullmatch(word) else None
    if kind is None or masked_text(f"{word} {following}") != f"{word} {MASK}":
        return None
    return kind, word


def _without_arguments_of_programs(words: list[str]) -> list[str]:
    """Mask the arguments that programs such as `sshpass -p` take as secrets."""
    line = " ".join(_WHITE.sub("_", word) for word in words)
    spans = secret_spans(line)
    if not spans:
        return words
    shown: list[str] = []
    begin = 0
    for word in words:
        inside = [(start - begin, end - begin) for start, end in spans if begin <= start < begin + len(word)]
        begin += len(word) + 1
        for start, end in reversed(inside):
            word = word[:start] + MASK + word[end:]
        shown.append(word)
    return shown
