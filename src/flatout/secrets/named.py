"""Mask the values that follow a secret's name in a text: `NAME=value`, `"name": "value"`, `--name value`.

In: a text. Out: the text with the values masked. Quotes, prefixes and what follows a value stay, so that JSON and code
remain valid. Values of other names are searched too, because they can be commands or JSON themselves.
"""

from __future__ import annotations

import re

from flatout.secrets.names import SecretKind, holds_a_key, is_about, secret_kind, words_of
from flatout.secrets.shapes import MASK
from flatout.secrets.values import is_secret_value

_NAME = r"[A-Za-z_][\w.-]{0,120}"
_QUOTED = (
    r'"(?:[^"\\\n]|\\.){0,4000}"|\'(?:[^\'\\\n]|\\.){0,4000}\'|\\{1,8}"[^"\\\n]{0,4000}\\{1,8}"|\\{1,8}\'[^\'\\\n]{0,4000}\\{1,8}\''
    r"|&quot;[^&]{0,4000}&quot;"
)
# What stands between a name and its value where code declares its type: `password: str | None = "X"`.
_TYPE = r"(?:Optional\[)?(?:str|bytes|[sS]tring|SecretStr|Any|any)\]?(?:[ \t]?\|[ \t]?None)?"
_TYPED = rf":[ \t]{{0,3}}{_TYPE}\??[ \t]{{0,3}}=(?=[ \t]{{0,3}}[\"'])"
# The name and the separator of `NAME=`, `"name": `, `["name"] = `, `name => ` and `name := `.
_ASSIGNED = re.compile(
    rf"(?<![\w.-])(?:\\{{0,8}}[\"']|&quot;)?(?P<name>(?:--?)?{_NAME}(?:\[\w{{0,40}}\](?:\.[\w.-]{{1,80}})?)?)(?P<close>\\{{0,8}}[\"']|&quot;)?"
    rf"\]?(?P<space>[ \t]{{0,40}})(?P<separator>=>|->|:=|=(?!=)|{_TYPED}|:(?![:=/]))(?P<gap>[ \t]{{0,40}})"
)
_OPTION = re.compile(
    r"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]{0,120})(?P<close>)(?P<separator>)(?P<space>)(?P<gap>)"
    r"(?:[ \t]{1,10}(?=[^\s-])|[\"'],[ \t]{0,3}(?=[\"'][^-\"']))"
)
# `aws configure set NAME value`, `kaggle config set -n NAME -v value`, `set -gx NAME value`, `setenv NAME value`,
# `mpiexec -genv NAME value`, and `ENV NAME value` of a Dockerfile.
_SET = re.compile(
    r"(?<![\w.-])(?:config(?:ure)?[ \t]{1,3}(?:--?\w{1,20}[ \t]{1,3})?set[ \t]{1,3}(?:-n[ \t]{1,3})?"
    r"|set[ \t]{1,3}-\w{1,4}[ \t]{1,3}|(?:--?)?setenv[ \t]{1,3}|setx[ \t]{1,3}|ENV[ \t]{1,3}|-g?env[ \t]{1,3})"
    r"(?P<name>[A-Za-z_][\w.-]{0,120})(?P<close>)(?P<separator>)(?P<space>)(?P<gap>)"
    r"[ \t]{1,10}(?:-v[ \t]{1,3})?(?=[^\s-])"
)
# `secret_access_key X` of `rclone config create` and of settings, and `NAME is set to X`: only if X mixes letters and
# digits, because other words follow such names in sentences.
_SPACED = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z]{1,40}(?:_[A-Za-z0-9]{1,40}){1,6})(?P<close>)(?P<separator>)(?P<space>)(?P<gap>)"
    r"[ \t]{1,10}(?:(?:is|was)[ \t](?:set[ \t]to[ \t])?)?"
    r"(?!python[\d.]*\b)(?=[\w.~+/-]{0,80}\d)(?=[\w.~+/-]{0,80}[A-Za-z])(?=[\w.~+/-]{6})"
)
# A pair in code: `environ.setdefault("NAME", "value")`, `[('NAME', 'value')]`; a list of two names is none.
_PAIRED = re.compile(
    r"(?<=[(\[])[\"'](?P<name>[A-Za-z_][\w.-]{0,120})(?P<close>[\"'])(?P<separator>,)(?P<space>)(?P<gap>[ \t]{0,3})"
    r"(?=(?:\"[^\"\n]{1,4000}\"|'[^'\n]{1,4000}')[)\]])"
)
_VALUE = re.compile(
    rf"(?P<prefix>[bfruBFRU]{{0,2}}(?=[\"']))?(?:(?P<quoted>{_QUOTED})"
    r"|(?P<list>\[[^\[\]\n]{0,4000}\])|(?P<table>\{[^{}\n]{0,4000}\})|(?P<unclosed>[\"'])?(?P<bare>[^\s\"'`]{1,4000}))"
)
_WORDS = re.compile(r"[\w!?.@#$%^&*+~]{1,80}(?:[ \t]{1,3}[\w!?.@#$%^&*+~]{1,80}){1,11}(?=[ \t]*(?:\r?\n|$))")
_QUOTES = re.compile(r"\\{0,8}[\"']|&quot;")
_ITEM = re.compile(r"(?P<before>(?:^\[|,)\s{0,3})(?P<key>)(?P<value>[^\s\[\]{},][^\[\]{},]{0,4000})")
_FIELD = re.compile(
    r"(?P<before>(?P<key>[\w.-]{1,80})[\"']?\s{0,3}[:=]\s{0,3})(?P<value>[^\s\[\]{},][^\[\]{},]{0,4000})"
)
# An unquoted value ends before the next pair, and before what closes it.
_END_OF_VALUE = re.compile(
    r"&&|\|\||[;&|](?=$|[\w.-]{1,80}=|[A-Za-z ])"
    r"|,(?=$|\\{0,8}[\"']?[A-Za-z_][\w.-]{0,80}\\{0,8}[\"']?[=:])|&quot;|<|\\[nrt\"']"
)
# What stands before an option of a remote of rclone: `:sftp,host=h,`, and `remote,` after the word rclone.
_OPTIONS = r"(?:,[\w-]{1,80}(?:=(?:\\?\"[^\"\n]{0,400}\"|\\?'[^'\n]{0,400}'|[^\s,:\"']{0,400}))?){0,40},\Z"
_REMOTE = re.compile(
    rf"(?<![^\s\"'=]):[a-z\d]{{2,40}}{_OPTIONS}"
    rf"|(?<![\w-])rclone[ \t](?:[^\n|;&]{{0,400}}[ \t\"'])?[\w.+@-]{{1,80}}{_OPTIONS}"
)
_REMOTE_CHARACTERS = 600
_CLOSERS = ")]}>.,;:!?"
_WORD = re.compile(r"[A-Za-z]?[a-z]{1,14}")
_BEFORE_PROSE = re.compile(r"(?i)(?:unexpected|invalid|illegal|bad|unknown|next|special|missing|extra) $")
_VARIABLE = re.compile(r"[a-z_]{1,40}[),].{0,40}")
_PROSE_CHARACTERS = 12
_MIXED = re.compile(r"[\"']?(?=[\w!@#$%^&*+~.-]{0,80}\d)(?=[\w!@#$%^&*+~.-]{0,80}[A-Za-z])[\w!@#$%^&*+~.-]{6}")
# `wandb: {`, and other entries before the one in question.
_TABLE = re.compile(r"([\w.-]{1,80})[\"']?[ \t]{0,3}[:=][ \t]{0,3}\{(?:[^{}\n]{0,300},)?[ \t]{0,3}\Z")
_TABLE_CHARACTERS = 400
# A pair or an object around the secret, which is the last text in it: `SecretStr('X')`, `auth=('me', 'X')`.
_WRAPPED = re.compile(
    r"(?P<head>(?:[A-Za-z_][\w.]{0,60}\.)?(?:[A-Z][A-Za-z0-9]{2,60})?\((?:[\"'][^\"'\n()]{0,200}[\"'],[ \t]{0,3}){0,2})"
    r"(?:\"(?P<double>[^\"\n]{1,400})\"|'(?P<single>[^'\n]{1,400})')(?=[ \t]{0,3}[,)])"
)
# `token=AddedToken("<mask>")` names a token of text.
_OF_WRAPPED = {SecretKind.TOKEN: SecretKind.PERHAPS, SecretKind.PASS: SecretKind.PERHAPS}
_VALUE_CHARACTERS, _RANDOM_CHARACTERS = 4100, 200


def masked_values(text: str) -> str:
    """Mask the value after each name of a secret."""
    for pattern in (_ASSIGNED, _OPTION, _SET, _SPACED, _PAIRED):
        text = _masked(text, pattern)
    return text


def _masked(text: str, pattern: re.Pattern[str]) -> str:
    parts: list[str] = []
    done = 0
    for head in pattern.finditer(text):
        kind = secret_kind(head["name"])
        if kind is None or head.start() < done or _is_prose(text, head, kind):
            continue
        most_characters = _RANDOM_CHARACTERS if kind is SecretKind.PERHAPS else _VALUE_CHARACTERS
        value = _VALUE.match(text, head.end(), min(head.end() + most_characters, _end_of_remote(text, head)))
        if value is None:
            continue
        wrapped = _WRAPPED.match(text, head.end())
        if wrapped is not None:
            start, end = wrapped.span("double" if wrapped["double"] is not None else "single")
            if is_secret_value(_OF_WRAPPED.get(kind, kind), head["name"], text[start:end]):
                parts += [text[done:start], MASK]
                done = end
            continue
        words = _WORDS.match(text, head.end()) if _is_setting(text, head, kind) else None
        if words is not None and is_secret_value(kind, head["name"], words[0]):
            parts += [text[done : head.end()], MASK]
            done = words.end()
            continue
        shown = _shown(kind, head, value)
        if shown is not None and not _is_variable(text, head, value):
            parts += [text[done : head.end()], shown]
            done = value.end()
    return "".join([*parts, text[done:]])


def _end_of_remote(text: str, head: re.Match[str]) -> int:
    """Return where a remote of rclone ends whose option this is, and the end of the text if it is none.

    A colon ends the remote, and the path follows it; a value that has a colon itself has quotes.
    """
    is_quoted = text.startswith(("'", '"', "\\"), head.end())
    if is_quoted or not _REMOTE.search(text, max(head.start() - _REMOTE_CHARACTERS, 0), head.start()):
        return len(text)
    colon = text.find(":", head.end())
    return colon if colon >= 0 else len(text)


def _is_setting(text: str, head: re.Match[str], kind: SecretKind) -> bool:
    """Whether it is a line of settings, `password = a b c`, whose value can have spaces.

    A variable, whose name is in capitals, has none: a command follows it.
    """
    line = text[text.rfind("\n", 0, head.start()) + 1 : head.start()]
    has_separator = head["separator"] in ("=", ":") and not head["close"]
    return kind is SecretKind.CERTAIN and has_separator and not line.strip() and not head["name"].isupper()


def _is_prose(text: str, head: re.Match[str], kind: SecretKind) -> bool:
    """Whether the name is a word of a sentence, as in `unexpected token: '}'` and `PASS: test_x`."""
    if words_of(head["name"])[-1] == "authorization":  # the header, which is masked elsewhere
        return True
    if head["separator"] == "=" and head["gap"] and not head["space"]:  # `TOKEN= python`, an empty value in a shell
        return True
    if head["separator"] == "->":  # `HF_TOKEN -> X`, but not `token -> id`
        return not (head["name"].isupper() or (kind is SecretKind.CERTAIN and _MIXED.match(text, head.end())))
    if head["separator"] == ",":
        return kind is SecretKind.PERHAPS
    if head["separator"] != ":" or head["close"] or len(words_of(head["name"])) > 1:
        return False
    if kind is SecretKind.PERHAPS:
        table = _TABLE.search(text, max(head.start() - _TABLE_CHARACTERS, 0), head.start())
        return table is None or not holds_a_key(table[1])
    if kind is SecretKind.PASS:
        return True
    before = text[max(head.start() - _PROSE_CHARACTERS, 0) : head.start()]
    return kind is SecretKind.TOKEN and _BEFORE_PROSE.search(before) is not None


def _is_variable(text: str, head: re.Match[str], value: re.Match[str]) -> bool:
    """Whether it is an argument in code, as in `login(token=mine)`: a text would have quotes there."""
    is_argument = head["separator"] == "=" and text[: head.start()].rstrip().endswith(("(", ","))
    return is_argument and value["bare"] is not None and _VARIABLE.fullmatch(value["bare"]) is not None


def _shown(kind: SecretKind, head: re.Match[str], value: re.Match[str]) -> str | None:
    """Return what is shown instead of a value; None if it is not a secret."""
    name = head["name"].lstrip("-")
    prefix = value["prefix"] or ""
    if value["quoted"] is not None:
        if head["separator"] == "," and not _is_paired(name, value["quoted"]):
            return None
        shown = _shown_quoted(kind, name, value["quoted"])
        return None if shown is None else prefix + shown
    if value["list"] is not None or value["table"] is not None:
        collection, pattern = (value["list"], _ITEM) if value["list"] is not None else (value["table"], _FIELD)
        masked = pattern.sub(lambda item: _shown_item(kind, name, item), collection)
        return masked if masked != collection else None
    bare, rest = _parted(value["bare"])
    is_word = head["separator"] == ":" and len(words_of(name)) == 1 and _WORD.fullmatch(bare)  # `token: found`
    if (is_word and kind is not SecretKind.CERTAIN) or not is_secret_value(kind, name, bare):
        return None
    return f"{prefix}{value['unclosed'] or ''}{MASK}{rest}"


def _is_paired(name: str, quoted: str) -> bool:
    """Whether two quoted words are a name and its value, and not two names of columns or of variables."""
    _, inner = _unquoted(quoted)
    if name.isupper():
        return not inner.isupper()
    return any(map(str.isdigit, inner))


def _shown_quoted(kind: SecretKind, name: str, quoted: str) -> str | None:
    mark, inner = _unquoted(quoted)
    return f"{mark}{MASK}{mark}" if is_secret_value(kind, name, inner) else None


def _shown_item(kind: SecretKind, name: str, item: re.Match[str]) -> str:
    mark, inner = _unquoted(item["value"])
    if is_about(item["key"]) or not is_secret_value(kind, name, inner):
        return item[0]
    return f"{item['before']}{mark}{MASK}{mark}"


def _unquoted(value: str) -> tuple[str, str]:
    """Return the quotes of a value, empty if it has none, and what stands in them."""
    opening = _QUOTES.match(value)
    if opening is None or not value.endswith(opening[0]) or len(value) < 2 * len(opening[0]):
        return "", value
    return opening[0], value[len(opening[0]) : len(value) - len(opening[0])]


def _parted(bare: str) -> tuple[str, str]:
    """Part an unquoted value from what follows it without a space, such as `,x=2)`."""
    end = _END_OF_VALUE.search(bare)
    stop = end.start() if end is not None else len(bare)
    value = bare[:stop].rstrip(_CLOSERS)
    if value.count("(") > value.count(")") or value.count("{") > value.count("}"):
        value = bare[:stop].rstrip(".,;:!?")
    return value, bare[len(value) :]
