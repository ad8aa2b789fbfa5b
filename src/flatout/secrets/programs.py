"""Mask the arguments that programs take as secrets without a name, such as `sshpass -p X` and `curl -u me:X`.

In: a typed command, anywhere in a text. Out: where the secrets stand in it, or the text with these masked.
"""

from __future__ import annotations

import re

from flatout.secrets.names import SecretKind
from flatout.secrets.shapes import MASK
from flatout.secrets.values import is_secret_value

# The program and its option; then the secret, which can follow a user's name and a colon.
_BEFORE = r"[ \t](?:[^\n|;&]{0,300}?[ \t])?"  # other arguments of the program
_USER = r"[\"']?[^\s:\"'/-][^\s:\"'/]{0,200}:"
_HEADS = (
    r"sshpass[ \t]{1,3}-p[ \t]{0,3}",
    rf"mysql(?:dump|admin)?{_BEFORE}-p(?=[^ \t])",
    r"wandb[ \t]{1,3}login[ \t]{1,3}(?:--?[\w-]{1,30}[ \t]{1,3}){0,4}(?:--host[= ]\S{1,200}[ \t]{1,3})?(?=\w{20})",
    rf"(?:docker|podman|helm|skopeo|crane|oras|apptainer)[ \t](?:registry[ \t])?login{_BEFORE}-p[ \t]{{0,3}}",
    rf"redis-cli{_BEFORE}-a[ \t]{{1,3}}",
    rf"ldap\w{{3,10}}{_BEFORE}-w[ \t]{{1,3}}",
    rf"(?:curl|wget|https?|xh){_BEFORE}(?:-u|-U|--user|--proxy-user|-a)[ \t=]{{0,3}}{_USER}",
    rf"curl{_BEFORE}(?:-b|--cookie)[ \t=]{{1,3}}[\"']?[\w.-]{{1,80}}=",
    r"-pass(?:in|out)?[ \t]{1,3}pass:",
    rf"(?:un)?zip{_BEFORE}-P[ \t]{{1,3}}",
    rf"7z[ar]?{_BEFORE}-p(?=[^ \t])",
    rf"mongo(?:sh|dump|restore)?{_BEFORE}-p[ \t]{{1,3}}",
    rf"lftp{_BEFORE}-u[ \t]{{1,3}}[^\s,]{{1,200}},",
    rf"ssh-keygen{_BEFORE}-N[ \t]{{1,3}}",
    rf"smbclient{_BEFORE}-U[ \t]{{1,3}}[^\s%]{{1,200}}%",
)
_PROGRAMS = re.compile(
    rf"(?<![\w-])(?P<head>{'|'.join(_HEADS)})(?P<value>\"[^\"\n]{{1,400}}\"|'[^'\n]{{1,400}}'|[^\s\"']{{1,400}})"
)


def masked_programs(text: str) -> str:
    """Mask the arguments that programs such as `sshpass` and `curl` take as secrets."""
    spans = secret_spans(text)
    for start, end in reversed(spans):
        text = text[:start] + MASK + text[end:]
    return text


def secret_spans(line: str) -> list[tuple[int, int]]:
    """Return where in a typed command such arguments stand."""
    spans = []
    for match in _PROGRAMS.finditer(line):
        value = match["value"]
        is_user = value.isdigit() and match["head"].rstrip(":").endswith(tuple("0123456789"))
        if not is_user and is_secret_value(SecretKind.CERTAIN, "password", value.strip("\"'")):
            spans.append(match.span("value"))
    return spans
