"""Recognise secrets by their name or form: one rule for commands, recordings and bundles."""

from __future__ import annotations

import re

MASK = "***"

_SECRET_WORDS = {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey"}
_SECRET_BEFORE_KEY = {"api", "access", "private", "secret", "account", "auth", "wandb", "signing", "encryption", "ssh"}
_TOKENS_OF_TEXT = {"eos", "bos", "pad", "mask", "unk", "sep", "cls", "stop", "special", "start", "end", "image", "per"}
KNOWN_SECRETS = re.compile(
    r"\b(hf_\w{10,}|sk-[\w-]{10,}|gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")


def names_a_secret(name: str) -> bool:
    """Whether a variable or an option of this name holds one: `HF_TOKEN`, `--api-key`; not `eos_token`."""
    words = [word for word in re.split(r"[-_.]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()) if word]
    if _SECRET_WORDS.intersection(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words and words[-1] == "token":
        return before not in _TOKENS_OF_TEXT
    return bool(words) and words[-1] in ("key", "keys") and before in _SECRET_BEFORE_KEY
