"""Decide whether a name is that of a secret: a variable, an option, a key of JSON or a header.

In: a name such as `HF_TOKEN`, `--db.password`, `X-Api-Key` or `clientSecret`. Out: the kind of the secret, or None.
Names of this field that only look like it (`eos_token`, `sort-key`, `backward_pass`) name none, and neither do names of
what is about a secret (`password_file`, `token_count`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class SecretKind(Enum):
    """How much a name says about its value."""

    CERTAIN = "certain"  # a password, a secret: any value
    KEY = "key"  # an API key: not the path of a key file
    TOKEN = "token"  # not a number, which is the ID of a token of text
    AUTH = "auth"  # not the name of a method, such as `munge`
    PASS = "pass"  # not a small number, which counts passes
    WEBHOOK = "webhook"  # the address is the secret
    PERHAPS = "perhaps"  # `key`, `code`: only a value that looks random


_STRONG = {
    *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "pswd"),
    *("credential", "credentials", "creds", "apikey", "apikeys", "apitoken", "authtoken", "jwt", "otp", "psk"),
    *("sshpass", "cookie", "cookies", "connectionstring", "authkey", "passwort", "motdepasse", "mnemonic"),
}
# Ends of words without a separator, as in `PGPASSWORD`, `accountkey` and `githubtoken`.
_STRONG_ENDS = (
    *("password", "passwd", "passphrase", "secret", "apikey", "authtoken", "accesstoken", "apitoken", "accesskey"),
    *("secretkey", "privatekey", "accountkey", "sessiontoken", "refreshtoken", "bearertoken", "usertoken", "hftoken"),
    *("githubtoken", "gitlabtoken", "sharedkey", "masterkey", "licensekey", "instrumentationkey", "encryptionkey"),
    *("storagekey", "signingkey", "subscriptionkey", "wandbkey", "sastoken", "idtoken", "oauthtoken"),
    *("storepass", "keypass", "dbpass", "userpass", "rootpass", "adminpass", "bindpass", "dbpasswd"),
)
# A name that ends with one of these is about a secret, and its value is none: `password_file`, `token_type`.
_ABOUT = {
    *("file", "files", "filename", "path", "paths", "dir", "folder", "directory", "name", "names", "id", "ids", "uri"),
    *(
        "host",
        "port",
        "endpoint",
        "expiry",
        "expires",
        "expiration",
        "ttl",
        "timeout",
        "length",
        "len",
        "size",
        "count",
    ),
    *("type", "kind", "env", "envvar", "var", "variable", "arn", "manager", "version", "store", "provider", "helper"),
    *("prefix", "suffix", "mode", "policy", "scope", "scopes", "required", "enabled", "disabled", "index", "format"),
    *("field", "column", "prompt", "strength", "min", "max", "rotation", "ref", "backend", "class", "module", "loader"),
    *("source", "algorithm", "alg", "bits", "mount", "volume", "label", "namespace", "stdin", "age", "limit", "status"),
    *("error", "errors", "check", "manager", "lifetime", "rate", "budget", "total", "used", "only", "logits", "loss"),
}
_NOT_OF_TOKENS = {
    *("eos", "bos", "pad", "padding", "mask", "masked", "unk", "unknown", "sep", "cls", "stop", "special", "start"),
    *(
        "end",
        "image",
        "per",
        "num",
        "n",
        "next",
        "first",
        "last",
        "prompt",
        "prefix",
        "suffix",
        "video",
        "audio",
        "think",
    ),
    *("class", "register", "reg", "vision", "text", "word", "sub", "new", "rare", "begin", "turn", "input", "output"),
    *("prev", "previous", "current", "max", "min", "total", "generated", "generate", "target", "draft", "accepted"),
    *("vocab", "extra", "separator", "delimiter", "line", "newline", "placeholder", "boi", "eoi", "eot", "eod", "bot"),
    *("unexpected", "invalid", "illegal", "bad", "tool", "added", "trigger", "pooling", "distillation", "decode"),
    *("control", "reserved", "dummy", "fill", "filler", "ignore", "sentinel", "split", "language", "lang", "task"),
    *("decoder", "encoder", "query", "patch", "visual", "speech", "byte", "char", "each", "one", "ms", "us", "sec"),
}
_NOT_OF_KEYS = {
    *("sort", "primary", "foreign", "partition", "batch", "image", "label", "text", "state", "dict", "group", "cache"),
    *("data", "json", "metric", "monitor", "prompt", "response", "input", "output", "target", "reward", "id", "index"),
    *("time", "order", "by", "map", "row", "column", "field", "lookup", "query", "attention", "attn", "value", "kv"),
    *("num", "n", "head", "public", "pub", "host", "any", "press", "hot", "short", "rank", "store", "param", "params"),
    *("config", "split", "dataset", "feature", "features", "video", "audio", "caption", "timestamp", "sample", "loss"),
    *("eval", "best", "score", "unique", "object", "bucket", "tensor", "missing", "unexpected", "step", "tag", "name"),
    *(
        "type",
        "device",
        "memory",
        "model",
        "optimizer",
        "scheduler",
        "checkpoint",
        "ckpt",
        "weight",
        "weights",
        "layer",
    ),
    *("module", "block", "mask", "position", "cross", "self", "routing", "shard", "registry", "join", "candidate"),
    *("surrogate", "composite", "clustering", "arrow", "up", "down", "left", "right", "escape", "function", "enter"),
    *("tab", "shift", "control", "per", "the", "this", "that", "in", "of", "for", "same", "new", "old", "next", "last"),
    *("first", "duplicate", "invalid", "unknown", "required", "extra", "node", "job", "run", "trial", "question"),
    *("answer", "chosen", "rejected", "conversation", "message", "messages", "instruction", "target", "src", "source"),
    *("dst", "segment", "entity", "user", "item", "train", "val", "valid", "test", "return", "storage", "storages"),
    *("known", "trusted", "no", "with", "without", "use", "has", "is", "random", "rng", "prng", "rope", "log", "early"),
}
# With these before `key`, it is one although the list above could have them.
_OF_KEYS = {
    *("api", "access", "private", "secret", "account", "auth", "wandb", "signing", "encryption", "ssh", "kaggle"),
    *("storage", "service", "master", "shared", "subscription", "license", "openai", "azure", "aws", "fernet", "hmac"),
}
_NOT_OF_PASSES = {
    *("forward", "backward", "first", "second", "third", "last", "one", "two", "multi", "single", "fwd", "bwd", "low"),
    *(
        "high",
        "band",
        "by",
        "per",
        "warmup",
        "num",
        "n",
        "test",
        "each",
        "next",
        "optimizer",
        "render",
        "compile",
        "ir",
    ),
    *(
        "fusion",
        "graph",
        "tests",
        "must",
        "did",
        "full",
        "extra",
        "final",
        "sync",
        "this",
        "prefill",
        "decode",
        "shape",
    ),
    *(
        "inductor",
        "post",
        "pre",
        "grad",
        "joint",
        "custom",
        "dynamo",
        "fx",
        "epoch",
        "eval",
        "train",
        "no",
        "llvm",
        "mlir",
    ),
}
_FLAGS = {
    *("use", "has", "no", "with", "without", "enable", "disable", "skip", "require", "requires", "ask", "show", "hide"),
    *(
        "is",
        "needs",
        "need",
        "trust",
        "allow",
        "print",
        "check",
        "verify",
        "add",
        "generate",
        "ignore",
        "mask",
        "reset",
    ),
}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")


def words_of(name: str) -> list[str]:
    """Split a name into lowercase words: `clientSecret`, `client-secret` and `client.secret` are the same two."""
    return [word for part in _SEPARATORS.split(name) for word in _CAMEL.sub(" ", part).lower().split()]


def names_a_secret(name: str) -> bool:
    """Whether a variable or an option of this name holds a secret: `HF_TOKEN`, `--api-key`; not `eos_token`."""
    return secret_kind(name) not in (None, SecretKind.PERHAPS)


def is_about(name: str) -> bool:
    """Whether a value of this name is about a secret, and is none: `secretName`, `path`."""
    words = words_of(name)
    return bool(words) and words[-1] in _ABOUT


def holds_a_key(name: str) -> bool:
    """Whether the entry `key` of a table with this name is a secret: `wandb`, `openai`, not `sort` or `cache`."""
    words = words_of(name)
    return bool(words) and words[-1] in _OF_KEYS


@lru_cache(maxsize=4096)
def secret_kind(name: str) -> SecretKind | None:
    """Return the kind of secret that a name announces; None if it announces none."""
    if name in ("PWD", "OLDPWD"):  # the shell's working folder
        return None
    words = words_of(name)
    if not words:
        return None
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if "webhook" in words and last in ("webhook", "url", "uri", "hook", "address", "endpoint"):
        return SecretKind.WEBHOOK
    if words[-2:] == ["secret", "id"] or words[-2:] in (["security", "token"], ["pass", "phrase"], ["auth", "header"]):
        return SecretKind.CERTAIN
    if words[-3:] in (["private", "key", "id"], ["client", "key", "data"]):
        return SecretKind.CERTAIN
    if words[-3:-1] == ["bearer", "token"]:  # AWS_BEARER_TOKEN_BEDROCK
        return SecretKind.TOKEN
    if last in _ABOUT:
        return None
    if words[0] in _FLAGS and len(words) > 1:
        return SecretKind.PERHAPS if _names_one(words) else None
    return _kind_of_words(words, last, before)


def _names_one(words: list[str]) -> bool:
    return _kind_of_words(words, words[-1], words[-2]) is not None


def _kind_of_words(words: list[str], last: str, before: str) -> SecretKind | None:
    if any(word in _STRONG or word.endswith(_STRONG_ENDS) for word in words):
        return SecretKind.CERTAIN
    if last == "bearer":
        return SecretKind.TOKEN
    if last == "token":
        return None if before in _NOT_OF_TOKENS else SecretKind.TOKEN
    if last == "tokens":
        return SecretKind.TOKEN if before in ("api", "access", "auth", "bearer", "refresh", "secret") else None
    if last in ("key", "keys"):
        return _kind_of_key(last, before)
    if last in ("auth", "authorization"):
        return SecretKind.AUTH
    if last == "pass":
        return None if before in _NOT_OF_PASSES else SecretKind.PASS
    if last in ("sas", "signature") and before in (
        "azure",
        "blob",
        "container",
        "storage",
        "url",
        "amz",
        "goog",
        "oauth",
    ):
        return SecretKind.CERTAIN
    return None


def _kind_of_key(last: str, before: str) -> SecretKind | None:
    if not before:
        return SecretKind.PERHAPS if last == "key" else None
    if before in _OF_KEYS:
        return SecretKind.KEY
    if before in _NOT_OF_KEYS or last == "keys" or before.isdigit():
        return None
    return SecretKind.KEY
