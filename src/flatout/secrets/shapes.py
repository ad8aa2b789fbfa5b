"""Secrets that are recognised by their form wherever they stand: tokens of known services, keys, and parts of URLs.

In: a text. Out: the text with these replaced by `MASK`. Each pattern reads a text once: none backtracks over more than
a bounded number of characters.
"""

from __future__ import annotations

import base64
import binascii
import re

from flatout.secrets.names import SecretKind, secret_kind
from flatout.secrets.values import is_secret_value, looks_random

MASK = "***"

_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"hf_\w{10,}|api_org_\w{20,}|hf_oauth_\w{10,}"  # Hugging Face
    r"|sk-[\w-]{10,}|gsk_\w{20,}|xai-\w{20,}|pplx-\w{20,}|r8_\w{20,}|nvapi-[\w-]{20,}|csk-\w{20,}|fw_\w{20,}"
    r"|tgp_v\d_[\w-]{20,}|wandb_v\d_\w{20,}|KGAT_\w{20,}|jina_\w{20,}|lsv2_\w{10,}|ls__\w{20,}"
    r"|gh[pousr]_\w{10,}|github_pat_\w{10,}|gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)-[\w-]{10,}"
    r"|ATATT3[\w=-]{20,}|ATCTT3[\w=-]{20,}|bbdc-[\w+/-]{20,}"  # Atlassian
    r"|(?:xoxe\.)?xox[abceoprs]-[\w-]{10,}|xapp-[\w-]{10,}"  # Slack
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|LTAI[A-Za-z0-9]{12,}|AKID[A-Za-z0-9]{28,}"  # AWS, Alibaba, Tencent
    r"|AIza[\w-]{30,}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}"  # Google
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|eyJhcGl[\w+/=-]{20,}"  # JSON web tokens; keys of Neptune
    r"|npm_\w{30,}|pypi-[\w-]{20,}|dckr_(?:pat|oat)_[\w-]{10,}|dop_v1_\w{20,}|rubygems_\w{30,}|oy2\w{40,}"
    r"|SG\.[\w-]{10,}\.[\w-]{10,}|[srp]k_(?:live|test)_\w{10,}|whsec_\w{10,}|key-[0-9a-f]{32}"
    r"|dapi[0-9a-f]{32}|hv[sbr]\.[\w-]{20,}|lin_api_\w{20,}|ntn_\w{20,}|shp(?:at|ca|pa|ss)_\w{20,}|NRAK-\w{20,}"
    r"|glsa_\w{20,}|glc_[\w=+/]{20,}|sntry[su]_[\w=+/-]{20,}|dp\.(?:pt|st|ct|sa)\.(?:[\w-]{1,20}\.)?\w{20,}|pul-[0-9a-f]{40}"
    r"|a[ks]-[A-Za-z0-9]{20,}|pat-[a-z]{2}\d-[\w-]{20,}|CCI(?:PAT|PRJ)_\w{20,}|sgp_\w{30,}|secret_[A-Za-z0-9]{40,}"
    r"|sha256~[\w-]{30,}"  # Modal, HubSpot, CircleCI, Sourcegraph, Notion, OpenShift
    r"|tskey-[\w-]{10,}|AGE-SECRET-KEY-1\w{20,}|PMAK-[\w-]{20,}|figd_[\w-]{20,}|sq0\w{3}-[\w-]{20,}|EAAC\w{30,}"
    r"|\d{8,10}:AA[\w-]{33}|\w{3}8Q~[\w.~-]{30,}"  # Telegram, Azure
    r"|eyJhdXRo[\w+/=-]{20,}|ABSK[\w+/=]{30,}"  # a registry's credentials in Base64; Bedrock
    r"|\w{14}\.atlasv1\.[\w-]{20,}|AKCp\w{60,}|cmVmdGtuOj\w{20,}"  # Terraform, JFrog
    r"|sbp_[0-9a-f]{30,}|pscale_(?:tkn|pw|oauth)_[\w-]{20,}|rpa_\w{30,}|pn[ub]_\w{30,}|ops_eyJ[\w=-]{20,}"
    r"|(?<=/t/)tk-[\w-]{10,}"  # a channel of conda
    r")"
)
# What each of the tokens contains, in lower case: most texts contain none.
_STARTS = (
    *("hf_", "api_org_", "sk-", "gsk_", "xai-", "pplx-", "r8_", "nvapi-", "csk-", "fw_", "tgp_v", "wandb_v", "kgat_"),
    *("jina_", "lsv2_", "ls__", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "glrt-"),
    *("glcbt-", "glptt-", "glft-", "glimt-", "glagent-", "glsoat-", "glffct-", "atatt3", "atctt3", "bbdc-", "xox"),
    *("xapp-", "akia", "asia", "abia", "acca", "ltai", "akid", "aiza", "ya29.", "gocspx-", "1//0", "eyj", "npm_"),
    *("pypi-", "dckr_", "dop_v1_", "rubygems_", "oy2", "sg.", "k_live_", "k_test_", "whsec_", "key-", "dapi", "hvs."),
    *("hvb.", "hvr.", "lin_api_", "ntn_", "shpat_", "shpca_", "shppa_", "shpss_", "nrak-", "glsa_", "glc_", "sntry"),
    *("dp.", "pul-", "tskey-", "age-secret", "pmak-", "figd_", "sq0", "eaac", ":aa", "8q~", "absk", ".atlasv1."),
    *("ak-", "as-", "pat-", "ccipat_", "cciprj_", "sgp_", "secret_", "sha256~"),
    *("akcp", "cmvmdgtuoj", "sbp_", "pscale_", "rpa_", "pnu_", "pnb_", "/t/tk-"),
)
_PEM = re.compile(
    r"(-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:(?!-----END)[\w+/=\s\\:,.()-]){1,20000}(-----END [A-Z0-9 ]{0,40}-----)?"
)
_PUTTY = re.compile(r"(Private-Lines: \d{1,3}\r?\n)(?:[\w+/=]{1,80}\r?\n){1,200}")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s{1,3})([\w.~+/-]{6,4000}={0,2})")
_AFTER_BEARER = {
    *("authentication", "authorization", "tokens", "scheme", "schemes", "header", "headers", "credentials", "method"),
    *("required", "missing", "invalid", "expired", "support", "format", "strategy", "security", "access", "client"),
}
_USER = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20})://(?P<user>[^\s:@/'\"<>?#]{0,400})"
    r"(?::(?!\d{1,5}(?:[/,?#\s'\"]|$))(?P<password>[^\s'\"<>/]{0,400}|[^\s'\"<>@,]{0,400}))?@"
)
# `user:password@host` without a scheme, as in the messages of databases and proxies.
_PLAIN_USER = re.compile(
    r"(?<![\w./:@%+-])(?P<user>(?:[\w.-]{1,60}/)?[A-Za-z_][\w.-]{0,60}):(?P<password>[^\s:@/'\"<>,;=(){}]{4,100})"
    r"(?P<host>@(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z\d-]{1,63}(?:\.[A-Za-z\d-]{1,63}){1,8}"
    r"|[A-Za-z][\w-]{0,62}(?=:\d{2,5}(?!\w)|:?/))(?![\w@]))(?P<port>:\d{2,5}(?!\w))?"
)
# What stands before an address of mail, `mailto:me2@host.org`. So does a word that begins with a capital.
_LABELS_OF_MAIL = {
    *("mailto", "email", "mail", "from", "to", "cc", "bcc", "author", "by", "owner", "contact", "sip", "acct"),
}
_ORACLE = re.compile(r"(?i)(jdbc:oracle:\w{1,10}:[^\s/@:'\"]{1,100}/)([^\s@'\"]{1,200})(?=@)")
_VERSION = re.compile(r"v?\d+(?:\.\d+)+[\w.-]*")
_DIGITS_OF_A_PORT = 5
_NAMES_OF_USERS = {"git", "hg", "svn", "oauth2", "x-access-token", "user", "username", "anonymous", "root", "admin"}
_WEBHOOK = re.compile(
    r"(?i)(https?://(?:"
    r"hooks?\.[\w.-]{1,100}/(?:services|workflows|triggers|hooks/catch|hooks|catch|webhooks?)?/?"
    r"|[\w.-]{1,100}/(?:[\w.-]{1,60}/){0,5}(?:webhooks?|webhookb2|incomingwebhook|hooks?|robot/send|trigger/[\w-]{1,60}/with/key)/"
    r"(?:\d{10,22}/)?"
    r"|hc-ping\.com/))([\w.@~+/-]{6,600})"
)
_BOT = re.compile(r"(/bot)(\d{6,12}:[\w-]{20,})")
_NAMED_SEGMENT = re.compile(
    r"(?i)(/(?:api[_-]?keys?|tokens?|secrets?|keys?|access[_-]?tokens?|integration)/)([^/\s?#'\"<>]{16,400})(?=[/\s?#'\"<>]|$)"
)
_HTTP = re.compile(r"(?i)https?://[^\s'\"<>]{1,4000}")
_QUERY = re.compile(r"((?:[?&#]|&amp;|\\u0026)([\w.~%-]{1,80})=)([^&\s\"'<>#\\]{1,4000})")
_NAMES_OF_QUERIES = {
    *("sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature"),
    *("x-goog-credential", "x-ms-signature", "x-oss-signature", "x-cos-security-token", "ossaccesskeyid", "sign"),
    *("q-signature", "awsaccesskeyid", "googleaccessid", "hmac", "key", "code", "jwt", "assertion", "hdnts", "policy"),
    *("session", "sessionid", "sid", "ticket", "sas", "st", "authuser", "verify", "otp", "auth", "token", "apikey"),
}
_LEAST_SIGNATURE = 6
_TIME = re.compile(r"\d{4}-?\d\d-?\d\d(?:[T ]\d\d(?::|%3A)?\d\d(?:(?::|%3A)?\d\d)?Z?)?", re.IGNORECASE)
_SIGNATURE = re.compile(
    r"(?<![\w-])((?:sig|signature|x-(?:amz|goog|ms|oss)-signature)=)([\w%+/=-]{16,1000})", re.IGNORECASE
)


def masked_urls(text: str) -> str:
    """Mask the private keys, and the parts of URLs that are secrets: passwords, signatures, tokens, webhooks."""
    if "PRIVATE KEY" in text:
        text = _PEM.sub(rf"\1{MASK}\2", text)
    if "Private-Lines" in text:
        text = _PUTTY.sub(rf"\1{MASK}\n", text)
    if "://" in text:
        text = _BOT.sub(rf"\1{MASK}", text)
        text = _WEBHOOK.sub(rf"\1{MASK}", text)
        text = _USER.sub(_masked_user, text)
        text = _HTTP.sub(lambda url: _NAMED_SEGMENT.sub(_masked_segment, url[0]), text)
    if "@" in text:
        text = _ORACLE.sub(rf"\1{MASK}", text)
        text = _PLAIN_USER.sub(_masked_plain_user, text)
    if "=" in text:
        text = _QUERY.sub(_masked_query, text)
        text = _SIGNATURE.sub(rf"\1{MASK}", text)
    return text


def masked_tokens(text: str, lowered: str) -> str:
    """Mask the tokens of known services, wherever they stand. `lowered` is the text before it was masked elsewhere."""
    if "bearer" in lowered or "basic" in lowered:
        text = _BEARER.sub(_masked_bearer, text)
    return _TOKENS.sub(MASK, text) if any(start in lowered for start in _STARTS) else text


def _masked_user(match: re.Match[str]) -> str:
    scheme, user, password = match["scheme"], match["user"], match["password"]
    if password is None:
        return f"{scheme}://{MASK}@" if _is_token(scheme, user) else match[0]
    is_key_of_a_service = scheme.lower().startswith("http") and password in ("", "x-oauth-basic", "x")
    shown_user = MASK if is_key_of_a_service and user else user
    shown_password = password if is_key_of_a_service or not password else MASK
    return f"{scheme}://{shown_user}:{shown_password}@"


def _masked_plain_user(match: re.Match[str]) -> str:
    """Mask the password of `user:password@host`, but nothing of an address of mail, a port, or the tag of an image."""
    user, password = match["user"], match["password"]
    is_label = user.lower() in _LABELS_OF_MAIL or user.istitle()
    is_port = password.isdigit() and len(password) <= _DIGITS_OF_A_PORT
    is_version = _VERSION.fullmatch(password) is not None
    is_word = password.replace(".", "").replace("-", "").isalpha()
    if is_port or is_version or (match["port"] is None and (is_label or is_word)):
        return match[0]
    if not is_secret_value(SecretKind.CERTAIN, "password", password):
        return match[0]
    return f"{user}:{MASK}{match['host']}{match['port'] or ''}"


def _is_token(scheme: str, user: str) -> bool:
    """Whether a URL's user without a password is a token, as in `https://TOKEN@github.com`."""
    if not user or user == MASK or user.lower() in _NAMES_OF_USERS or user.startswith("$"):
        return False
    protocol = scheme.lower().rpartition(".")[2]  # `url.https://TOKEN@github.com/.insteadOf` of git
    return looks_random(user) if not protocol.startswith(("http", "git+http", "ws")) else True


def _masked_segment(match: re.Match[str]) -> str:
    is_name = "." in match[2] or "-of-" in match[2]
    return f"{match[1]}{MASK}" if looks_random(match[2]) and not is_name else match[0]


def _masked_query(match: re.Match[str]) -> str:
    name, value = match[2], match[3]
    kind = secret_kind(name)
    is_secret = kind is not None and is_secret_value(kind, name, value)
    if name.lower() in _NAMES_OF_QUERIES:
        is_time = value.isdigit() or _TIME.fullmatch(value) is not None
        is_signature = len(value) >= _LEAST_SIGNATURE and not is_time and is_secret_value(SecretKind.AUTH, name, value)
        is_secret = is_secret or name.lower() == "sig" or is_signature
    return f"{match[1]}{MASK}" if is_secret else match[0]


def _masked_bearer(match: re.Match[str]) -> str:
    scheme, value = match[1].lower(), match[3]
    is_secret = _is_basic(value) if scheme == "basic" else value.lower().rstrip(".") not in _AFTER_BEARER
    return f"{match[1]}{match[2]}{MASK}" if is_secret else match[0]


def _is_basic(value: str) -> bool:
    """Whether it is the Base64 of a user and a password."""
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in decoded and decoded.isascii() and decoded.decode("ascii").isprintable()
