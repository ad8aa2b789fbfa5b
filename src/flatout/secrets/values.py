"""Decide whether the value of a secret's name is a secret: not a placeholder, a reference, a count or a path.

In: the kind of the name, the name, and the value without its quotes. Out: whether to mask the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from flatout.secrets.names import SecretKind

_WORDS_WITHOUT_SECRET = {
    *("", "true", "false", "yes", "no", "on", "off", "none", "null", "nil", "undefined", "nan", "auto", "default"),
    *(
        "required",
        "optional",
        "missing",
        "invalid",
        "expired",
        "unset",
        "not",
        "disabled",
        "enabled",
        "denied",
        "failed",
    ),
    *("str", "string", "int", "bool", "bytes", "float", "any", "object", "redacted", "masked", "hidden", "placeholder"),
    *("is", "was", "must", "cannot", "could", "should", "expected", "incorrect", "wrong", "empty", "present", "found"),
    *("the", "a", "an", "to", "for", "in", "of", "and", "or", "with", "from", "optional[str]", "str,", "unauthorized"),
}
_METHODS = {
    *("munge", "basic", "digest", "bearer", "oauth", "oauth2", "kerberos", "krb5", "ssh", "token", "password", "ntlm"),
    *("negotiate", "ldap", "pam", "iam", "sys", "unix", "local", "anonymous", "gssapi", "tls", "ssl", "mtls", "jwt"),
    *("plugin", "auth/munge", "auth/slurm", "auth/jwt", "auth/none", "munge.so", "rpcsec_gss", "0", "1"),
}
# References to a secret, from a shell, a template or code, and placeholders in documents.
_REFERENCE = re.compile(
    r"\$[A-Z_][A-Z0-9_]*|\$\{[A-Z_][A-Z0-9_]*\}|\$\(.*|\$\{\{.*|\{\{.*|<[a-zA-Z][^<>]{0,60}>|%\(?\w*\)?s|\{[a-z_.]*\}"
    r"|\*+|[xX]{3,}|\.{3}|`.*|(?:\w+\.)+\w+[\(\[].*|(?:getenv|getpass|input|str|environ|(?:get|load|read)_\w+)[\(\[].*"
    r"|[a-z_]\w*\([a-z_]\w*(?:, ?\w+(?:=\w+)?)*\)"
    r"|id=[\w.-]+(?:,(?:src|source|env|target|type|required|mode|uid|gid)=[^,\s]+)*"  # `docker build --secret`
    r"|(?:self|args|config|cfg|conf|settings|opts|options|os|kwargs|env|params|hparams|secrets|values)\.\w+(?:\.\w+)*",
    re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?[\d][\d_.,]*(?:e[-+]?\d+)?\s?[%a-zA-Z]{0,3}")
_PATH = re.compile(
    r"(?:~|\.{1,2})/[\w.@/-]+|/(?:home|root|etc|mnt|data|run|var|opt|tmp|workspace|scratch|secrets|users|usr|srv|work"
    r"|Users|lustre|nfs|fsx|shared|proc|dev|app|code|project|projects)/[\w.@/-]+|[\w./-]+\.(?:json|pem|key|pub|ya?ml|toml|txt|cfg|ini|crt)"
)
_LEAST_RANDOM = 16
_RUN = re.compile(rf"[A-Za-z0-9]{{{_LEAST_RANDOM},}}")
_CHANGE = re.compile(r"(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])")
_LEAST_CHANGES = 3
_LEAST_MIXED = 24  # a longer run of capitals, small letters and digits is generated
_DIGITS_OF_A_COUNT, _DIGITS_OF_PASSES = 4, 2


def is_secret_value(kind: SecretKind, name: str, value: str) -> bool:
    """Whether `value` after `name` is a secret. `value` is without quotes."""
    text = value.strip().strip("\"'").rstrip(",")
    return not _is_no_value(name, text) and _IS_SECRET[kind](name, text)


def _is_no_value(name: str, text: str) -> bool:
    """Whether it is empty, masked, a reference, or a word that says that there is no value."""
    is_empty = not any(map(str.isalnum, text))
    is_masked = text.startswith("***")
    is_word = text.lower() in _WORDS_WITHOUT_SECRET or text.lower() == name.lower()
    return is_empty or is_masked or is_word or _REFERENCE.fullmatch(text) is not None


def _is_certain(name: str, text: str) -> bool:
    is_path_of_credentials = _names_credentials(name) and _is_path(text)
    return not is_path_of_credentials and not _is_folder(name, text)


def _is_key(name: str, text: str) -> bool:
    is_count = text.isdigit() and len(text) <= _DIGITS_OF_A_COUNT
    return not is_count and not _is_path(text)


def _is_token(name: str, text: str) -> bool:
    return _NUMBER.fullmatch(text) is None and not _is_path(text)


def _is_authorization(name: str, text: str) -> bool:
    return text.lower() not in _METHODS and not _is_path(text)


def _is_password(name: str, text: str) -> bool:
    is_number_of_passes = text.isdigit() and len(text) <= _DIGITS_OF_PASSES
    return not is_number_of_passes


def _is_webhook(name: str, text: str) -> bool:
    return "://" in text


def _is_random(name: str, text: str) -> bool:
    return looks_random(text)


_IS_SECRET: dict[SecretKind, Callable[[str, str], bool]] = {
    SecretKind.CERTAIN: _is_certain,
    SecretKind.KEY: _is_key,
    SecretKind.TOKEN: _is_token,
    SecretKind.AUTH: _is_authorization,
    SecretKind.PASS: _is_password,
    SecretKind.WEBHOOK: _is_webhook,
    SecretKind.PERHAPS: _is_random,
}


def _is_path(text: str) -> bool:
    return _PATH.fullmatch(text) is not None


def looks_random(text: str) -> bool:
    """Whether a text looks like a generated key: long, without spaces, and of digits and letters."""
    if len(text) < _LEAST_RANDOM or not re.fullmatch(r"[\w+/=.~:-]+", text):
        return False
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text)) and "/" not in text.strip("/")


def is_generated(text: str) -> bool:
    """Whether a text can only be generated: a run of letters and digits that alternate, as no name of anything has."""
    return any(_alternates(run) or _is_mixed(run) for run in _RUN.findall(text))


def _alternates(run: str) -> bool:
    return len(_CHANGE.findall(run)) >= _LEAST_CHANGES


def _is_mixed(run: str) -> bool:
    has_all = any(map(str.isdigit, run)) and any(map(str.isupper, run)) and any(map(str.islower, run))
    return has_all and len(run) >= _LEAST_MIXED


def _names_credentials(name: str) -> bool:
    lowered = name.lower()
    return "cred" in lowered or "cookie" in lowered or "secrets" in lowered


def _is_folder(name: str, text: str) -> bool:
    """Whether it is the working folder, as in `pwd=/home/me`."""
    return name.lower().strip("-") == "pwd" and text.startswith(("/", "~", "."))
