"""Mask the secrets in a text of any kind: a message, a log, JSON, YAML, XML, code, or a command typed as one line.

In: a text. Out: the text, in which only secrets are replaced. A secret is a value after the name of a secret
(`named`), an argument of a program that takes one (`programs`), or recognised by its form (`shapes`).
"""

from __future__ import annotations

import re

from flatout.secrets.named import masked_values
from flatout.secrets.names import SecretKind, secret_kind
from flatout.secrets.plain_view import plain_view
from flatout.secrets.programs import masked_programs
from flatout.secrets.shapes import MASK, masked_tokens, masked_urls
from flatout.secrets.values import is_generated, is_secret_value
from flatout.secrets.yaml_lines import masked_yaml

# The word for a password in messages of other languages.
_SPOKEN = (
    "密码",
    "口令",
    "密钥",
    "パスワード",
    "contraseña",
    "contrasena",
    "mot de passe",
    "senha",
    "пароль",
    "passwort",
)
# A text without any of these words has no secret after a name; most of a log is done after this look.
_WORDS_OF_NAMES = (
    *("secret", "pass", "pwd", "pswd", "token", "key", "auth", "cred", "cookie", "otp", "jwt", "psk", "webhook", "sas"),
    *("signature", "mnemonic", "connectionstring", "motdepasse", "security", "identified", "bearer"),
    *_SPOKEN,
)
_PROGRAMS = (
    *("sshpass", "curl", "wget", "http", "mysql", "wandb", "login", "redis-cli", "ldap", "smbclient", "xh "),
    *("7z", "rar", "open -u", "ncftp", "redfishtool", "rdesktop", "freerdp", "sqlplus", "sqlldr", "expdp", "impdp"),
    *("nmcli", "wpa_passphrase", "cryptsetup", "gh secret", "etcdctl", "ab ", "keyvault", "pulumi", "dvc "),
    *("zip", "mongo", "lftp", "ssh-keygen", "pass:", "htpasswd", "sqlcmd", "bcp", "isql", "tsql", "cqlsh"),
    *("openssl", "az ", "gcloud", "ipmi", "racadm", "snmp", "useradd", "usermod", "passwd", "sshfs", "rpcclient"),
    *("send ", "wmic", "winexe", "smbmap"),
    *("rabbitmqctl", "sudo", "kinit", "-stdin", "with-token", "net ", "mosquitto", "publish", "twine"),
)
_HEADER = re.compile(
    r"(?i)((?<![\w-])(?:proxy-|x-)?authorization\\{0,8}[\"']?[ \t]{0,3}[:=][ \t]{0,3}\\{0,8}[\"']?)"
    r"(?:(?:bearer|basic|token|negotiate|apikey|api-key|key|bot|splunk|snowflake|genie|oauth)[ \t]{1,3}(\S)"
    r"|(?:digest|aws4-hmac-sha256|hawk|signature)[ \t]{1,3}([^\"'\r\n])|([^\s\"'\\,;]))"
)
_TO_SPACE = re.compile(r"[^\s\"'\\,;]{1,4000}")
_TO_END = re.compile(r"[^\r\n]{1,4000}")
_TO_QUOTE = re.compile(r"[^\"'\\\r\n]{1,4000}")
_COOKIE = re.compile(
    r"(?i)((?<![\w-])(?:set-)?cookie\\{0,8}[\"']?[ \t]{0,3}:[ \t]{0,3}\\{0,8}[\"']?)([\w.%-]{1,100}=[^\"'\r\n]{1,4000})"
)
_TAG = re.compile(r"<(?P<name>[A-Za-z_][\w.:-]{0,80})>(?P<value>[^<>\s][^<>]{0,1000})</(?P=name)>")
# Variables of a container, as in `{"name": "HF_TOKEN", "value": "..."}`, also on two lines of YAML.
_PAIR = re.compile(
    r"(?i)(?P<head>(?<![\w-])[\"']?(?:name|key)[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?P<name>[A-Za-z_][\w.-]{0,80})[\"']?"
    r"\s{0,3},?\s{0,40}[\"']?value[\"']?\s{0,3}[:=]\s{0,3})"
    r"(?P<value>\"[^\"\n]{0,4000}\"|'[^'\n]{0,4000}'|[^\s\"',}]{1,4000})"
)
_SQL = re.compile(
    r"(?i)\b((?:identified[ \t]{1,3}by|with[ \t]{1,3}password|password)[ \t]{1,3}(?:for[ \t]{1,3}\S{1,40}[ \t]{1,3})?)"
    r"('[^'\n]{1,400}'|\"[^\"\n]{1,400}\")"
)
_NETRC = re.compile(
    r"(?i)((?<![^\s\"'])(?:machine\s{1,8}\S{1,200}|default)\s{1,8}login\s{1,8}\S{1,200}\s{1,8}password\s{1,8})"
    r"[^\s\"']{1,400}"
)
# A secret in a sentence: `the password is hunter2`, `Incorrect API key provided: X`.
_SAID = re.compile(
    r"(?i)(?<!\w)((?:(?:with|using|and|by) (?:the )?(?:password|passwd|passphrase)[ \t]{1,3}[\"'`(]?)"
    r"|(?:password|passwd|passphrase)(?: for [^\s:]{1,60})?:[ \t]{1,3}[\"'`(]?"
    r"|(?:password|passwd|passphrase|api[ _-]?key|secret(?: key)?|(?:access |auth )?token)"
    r"(?: provided:?| is:?| was:?|:| =)[ \t]{1,3}[\"'`(]?"
    r"|(?:password|passwd|passphrase)[ \t][\"'`(]?(?=[^\s\"'`)]{6,100}[\"'`)]?"
    r" (?:(?:is|was|has been) )?(?:rejected|refused|denied|incorrect|invalid|wrong|expired|not accepted)\b)"
    r"|(?:password|passphrase)(?: (?:for|of) [^\n]{1,60}?)? (?:set|changed|reset) to[ \t]{1,3}[\"'`(]?"
    rf"|(?:{'|'.join(_SPOKEN)})[ \t]{{0,3}}(?:[:=\uff1a]|是|为|は|ist|es|est)[ \t]{{0,3}}[\"'`(]?)"
    r"([\w.~+/!@#$%^&*-]{6,400})"
)
# The same without a verb, `token X was refused`: only what can be nothing else than generated.
_MENTIONED = re.compile(
    r"(?i)\b((?:(?:api|access|secret|auth|license)[ _-]?(?:key|token)|token|(?:logged in|log in|login|sign(?:ed)? in)"
    r" (?:with|using)(?: the)? (?:key|credentials?))[ \t]{1,3}[\"'`(]?)([\w.-]{16,400})"
)
# Properties of Hadoop in XML, and of Spark as lines.
_PROPERTY = re.compile(
    r"(?P<head><name>\s{0,8}(?P<name>[\w.-]{1,120})\s{0,8}</name>\s{0,40}<value>"
    r"|(?m:^)(?P<line>[\w-]{1,80}(?:\.[\w-]{1,80}){1,8})[ \t]{1,8})"
    r"(?P<value>[^\s<>=:]{1,1000})(?=</value>|[ \t]*(?:\r?\n|$))"
)
# A row of a table of settings, `| api_key | X |`.
_ROW = re.compile(
    r"(?P<head>[|\u2502\u2503][ \t]{0,40}(?P<name>[A-Za-z][\w./-]{0,80})[ \t]{0,200}[|\u2502\u2503][ \t]{0,200}[\"']?)"
    r"(?P<value>[^\s|\u2502\u2503\"']{6,400})(?=[\"']?[ \t]{0,400}[|\u2502\u2503])"
)
# What pydantic says of a setting: its name, and on the next line the value that it was given.
_INPUT = re.compile(
    r"(?P<head>(?m:^)[ \t]{0,20}(?P<name>[A-Za-z_][\w.-]{0,120})[ \t]{0,3}\n[^\n]{0,1000}?\binput_value=)"
    r"(?P<mark>[\"'])(?P<value>[^\n]{1,400}?)(?P=mark)"
)
_LEAST_TOKEN = 16


def masked_text(text: str) -> str:
    """Mask the secrets in a text; everything else stays as it is, byte for byte.

    A line whose secret shows only in plain characters is returned in these.
    """
    masked = _masked(text)
    if plain_view(masked) == masked:
        return masked
    lines = masked.split("\n")
    return "\n".join(map(_masked_in_plain_view, lines))


def _masked_in_plain_view(line: str) -> str:
    view = plain_view(line)
    if view == line:
        return line
    masked = _masked(view)
    return line if masked == view else masked


def _masked(text: str) -> str:
    lowered = text.lower()
    if "value" in lowered:
        text = _PAIR.sub(_masked_pair, text)
    if "authorization" in lowered:
        text = _with_masked_headers(text)
    if "cookie" in lowered:
        text = _COOKIE.sub(rf"\1{MASK}", text)
    text = masked_urls(text)
    if any(word in lowered for word in _WORDS_OF_NAMES):
        text = _masked_names(text)
    if any(word in lowered for word in _PROGRAMS):
        text = masked_programs(text)
    return masked_tokens(text, lowered)


def _masked_names(text: str) -> str:
    """Mask what follows the name of a secret, in whatever syntax."""
    text = masked_values(text)
    if "</" in text:
        text = _TAG.sub(_masked_tag, text)
    text = _PROPERTY.sub(_masked_property, text)
    text = _SQL.sub(_masked_sql, text)
    text = _NETRC.sub(rf"\1{MASK}", text)
    text = _ROW.sub(_masked_row, text)
    if "input_value=" in text:
        text = _INPUT.sub(_masked_input, text)
    text = _MENTIONED.sub(_masked_mention, text)
    text = _SAID.sub(_masked_said, text)
    return masked_yaml(text) if "\n" in text else text


def _with_masked_headers(text: str) -> str:
    """Mask what follows `Authorization:` and the scheme; a scheme with parameters is masked to the end of the line."""
    parts: list[str] = []
    done = 0
    for match in _HEADER.finditer(text):
        group = next(number for number in (2, 3, 4) if match[number] is not None)
        start = match.start(group)
        value = (_end_of_scheme(text, match) if group == 3 else _TO_SPACE).match(text, start)
        if value is None or start < done or not is_secret_value(SecretKind.AUTH, "authorization", value[0]):
            continue
        parts += [text[done:start], MASK]
        done = value.end()
    return "".join([*parts, text[done:]])


def _end_of_scheme(text: str, header: re.Match[str]) -> re.Pattern[str]:
    """Return what matches the parameters of a scheme: to the quote that encloses the header, or to the line's end."""
    before = text[max(header.start() - 1, 0) : header.start()]
    is_quoted = before in ("'", '"') or header[1].endswith(("'", '"'))
    return _TO_QUOTE if is_quoted else _TO_END


def _masked_tag(match: re.Match[str]) -> str:
    kind = secret_kind(match["name"])
    if kind is None or not is_secret_value(kind, match["name"], match["value"]):
        return match[0]
    return f"<{match['name']}>{MASK}</{match['name']}>"


def _masked_pair(match: re.Match[str]) -> str:
    kind = secret_kind(match["name"])
    value = match["value"]
    mark = value[0] if value[:1] in ("'", '"') else ""
    if kind is None or not is_secret_value(kind, match["name"], value.strip("'\"")):
        return match[0]
    return f"{match['head']}{mark}{MASK}{mark}"


def _masked_property(match: re.Match[str]) -> str:
    name = match["name"] or match["line"]
    kind = secret_kind(name)
    if kind in (None, SecretKind.PERHAPS) or not is_secret_value(kind, name, match["value"]):
        return match[0]
    return f"{match['head']}{MASK}"


def _masked_row(match: re.Match[str]) -> str:
    kind, value = secret_kind(match["name"]), match["value"]
    is_mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    is_secret = kind is not None and is_mixed and is_secret_value(kind, match["name"], value)
    return f"{match['head']}{MASK}" if is_secret else match[0]


def _masked_input(match: re.Match[str]) -> str:
    kind, mark = secret_kind(match["name"]), match["mark"]
    is_secret = kind is not None and is_secret_value(kind, match["name"], match["value"])
    return f"{match['head']}{mark}{MASK}{mark}" if is_secret else match[0]


def _masked_mention(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if is_generated(match[2]) else match[0]


def _masked_sql(match: re.Match[str]) -> str:
    mark, value = match[2][0], match[2][1:-1]
    is_secret = is_secret_value(SecretKind.CERTAIN, "password", value)
    return f"{match[1]}{mark}{MASK}{mark}" if is_secret else match[0]


def _masked_said(match: re.Match[str]) -> str:
    """Mask a secret in a sentence; a word without a digit is none."""
    head, value = match[1], match[2]
    if not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)) or "://" in value:
        return match[0]
    kept = value.rstrip(".,;:!?")
    if "token" in head.lower() and len(kept) < _LEAST_TOKEN:  # the word or the number of a token of text
        return match[0]
    return f"{head}{MASK}{value[len(kept) :]}"
