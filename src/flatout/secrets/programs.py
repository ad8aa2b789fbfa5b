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
# Programs that read the secret from their standard input.
_ASKING = (
    r"(?:sudo[ \t]{1,3}(?:-\w{1,10}[ \t]{1,3}){0,3}-\w{0,5}S|kinit\b|passwd[ \t]{1,3}--stdin"
    r"|cryptsetup\b[^\n|;&<]{0,200}|sshfs\b[^\n|;&<]{0,200}password_stdin)"
)
_FROM_INPUT = rf"(?:{_ASKING}|[^\n|;&]{{1,200}}[ \t](?:--password-stdin|--with-token|--pass(?:word)?-file[ =]-))"
_HEADS = (
    r"sshpass[ \t]{1,3}(?:-[evh]{1,3}[ \t]{1,3}){0,3}-p[ \t]{0,3}",
    rf"mysql(?:dump|admin)?{_BEFORE}-p(?=[^ \t])",
    r"wandb[ \t]{1,3}login[ \t]{1,3}(?:--?[\w-]{1,30}[ \t]{1,3}){0,4}(?:--host[= ]\S{1,200}[ \t]{1,3})?(?=\w{20})",
    r"(?:docker|podman|nerdctl|buildah|helm|skopeo|crane|oras|apptainer|singularity|oc|az|cf|ibmcloud)"
    rf"[ \t](?:registry[ \t]|remote[ \t]|acr[ \t])?login{_BEFORE}-p[ \t=]{{0,3}}",
    rf"redis-cli{_BEFORE}-a[ \t]{{1,3}}",
    rf"ldap\w{{3,10}}{_BEFORE}-w[ \t]{{1,3}}",
    rf"(?:curl|wget|https?|xh){_BEFORE}(?:-[a-zA-Z]{{0,6}}[uU]|--user|--proxy-user|-a)[ \t=]{{0,3}}{_USER}",
    rf"curl{_BEFORE}(?:-E|--cert|--proxy-cert)[ \t=]{{1,3}}[\"']?[^\s:\"']{{1,200}}:",
    rf"etcdctl{_BEFORE}--user[ \t=]{{1,3}}{_USER}",
    rf"ab{_BEFORE}-[AP][ \t]{{0,3}}{_USER}",
    rf"curl{_BEFORE}(?:-b|--cookie)[ \t=]{{1,3}}[\"']?[\w.-]{{1,80}}=",
    r"-pass(?:in|out)?[ \t]{1,3}pass:",
    rf"(?:un)?zip{_BEFORE}-P[ \t]{{1,3}}",
    rf"(?:7z[ar]?|rar){_BEFORE}-h?p(?=[^ \t])",
    rf"mongo(?:sh|dump|restore)?{_BEFORE}-p[ \t]{{1,3}}",
    rf"(?:lftp|open){_BEFORE}-u[ \t]{{1,3}}[^\s,]{{1,200}},",
    rf"(?:ncftp\w{{0,5}}|redfishtool|rdesktop){_BEFORE}-p[ \t]{{1,3}}",
    rf"[xw]freerdp3?{_BEFORE}/p:",
    rf"(?:sqlplus|sqlldr|expdp|impdp){_BEFORE}[^\s/@\"'-]{{1,100}}/(?=[^\s/])",
    rf"az[ \t]keyvault[ \t]secret[ \t]set{_BEFORE}--value[ \t=]{{1,3}}",
    r"pulumi[ \t]config[ \t]set(?=[^\n|;&]{0,200}[ \t]--secret\b)[ \t]{1,3}(?:--?[\w-]{1,20}[ \t]{1,3}){0,4}"
    r"[\w:.*-]{1,80}[ \t]{1,3}(?=[^\s-])",
    rf"dvc[ \t]remote[ \t]modify{_BEFORE}(?:password|[\w-]{{0,40}}(?:secret|key|token|connection_string))[ \t]{{1,3}}",
    rf"ssh-keygen{_BEFORE}-N[ \t]{{1,3}}",
    r"smbclient[ \t]{1,3}[\"']?(?://|\\\\)\S{1,200}[ \t]{1,3}(?=[^\s-])",
    r"net[ \t]use[ \t](?:[\w*]:?[ \t]{1,3})?\\{2,4}\S{1,200}[ \t]{1,3}(?=[^\s/])",
    rf"(?:smbclient|rpcclient|net|wmic|winexe|smbmap){_BEFORE}-U[ \t]{{1,3}}[^\s%]{{1,200}}%",
    r"htpasswd[ \t]{1,3}-\w{0,8}b\w{0,8}[ \t]{1,3}(?:\S{1,200}[ \t]{1,3}){2}",
    rf"mosquitto_(?:pub|sub|rr){_BEFORE}-P[ \t]{{1,3}}",
    rf"(?:sqlcmd|bcp|isql|tsql){_BEFORE}-P[ \t]{{0,3}}",
    rf"(?:poetry|uv|hatch|flit|twine)[ \t](?:publish|upload){_BEFORE}-p[ \t]{{0,3}}",
    rf"nmcli{_BEFORE}(?:password|[\w.-]{{0,40}}psk)[ \t]{{1,3}}",
    r"wpa_passphrase[ \t]{1,3}[^\s\"']{1,100}[ \t]{1,3}",
    rf"gh[ \t]secret[ \t]set{_BEFORE}(?:--body[ \t=]{{1,3}}|-b[ \t]{{0,3}})",
    rf"cqlsh{_BEFORE}-p[ \t]{{1,3}}",
    rf"openssl{_BEFORE}-k[ \t]{{1,3}}",
    rf"ipmitool{_BEFORE}-P[ \t]{{0,3}}",
    rf"ipmi-\w{{1,20}}{_BEFORE}-[Pp][ \t]{{1,3}}",
    rf"racadm{_BEFORE}-p[ \t]{{1,3}}",
    rf"snmp\w{{2,12}}{_BEFORE}-A[ \t]{{1,3}}",
    rf"(?:useradd|usermod){_BEFORE}-p[ \t]{{1,3}}",
    r"gcloud[ \t]auth[ \t]activate-refresh-token[ \t]{1,3}\S{1,200}[ \t]{1,3}",
    rf"(?:echo|printf)[ \t]{{1,3}}{_USER}(?=\S{{1,400}}[ \t]{{0,3}}\|[ \t]{{0,3}}(?:sudo[ \t]{{1,3}})?chpasswd)",
    r"(?:assword|assphrase)[^\n]{0,60}?\bsend(?:_user|ln)?[ \t]{1,3}(?:--[ \t]{1,3})?",
    r"vault[ \t]{1,3}login[ \t]{1,3}(?=s\.\w{20})",
    r"rabbitmqctl[ \t]{1,3}(?:add_user|change_password)[ \t]{1,3}\S{1,200}[ \t]{1,3}",
    r"(?:echo|printf)[ \t]{1,3}(?:-n[ \t]{1,3}|[\"']?%s(?:\\n)?[\"']?[ \t]{1,3})?"
    rf"(?=\S{{1,400}}[ \t]{{0,3}}\|[ \t]{{0,3}}{_FROM_INPUT})",
    rf"{_ASKING}[^\n|;&]{{0,100}}<<<[ \t]{{0,3}}",
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
