"""The masker against a corpus: every secret is replaced and nothing else is changed."""

from __future__ import annotations

import re
import shlex
import time

import pytest
from tests.secrets.corpus import COMMANDS, HARMLESS, TEXTS

from flatout.secrets import MASK, Masker, masked_command, masked_environment, masked_text, names_a_secret

_SECRET = re.compile("«(.*?)»")
_lines = [line for line in COMMANDS.splitlines() if line]
_texts = [line for line in TEXTS.splitlines() if line]
_harmless = [line for line in HARMLESS.splitlines() if line]


def _plain(line: str) -> str:
    return _SECRET.sub(r"\1", line)


def _masked(line: str) -> str:
    return _SECRET.sub(MASK, line)


def test_the_corpus_is_as_large_as_it_claims() -> None:
    assert len({*_lines, *_texts}) >= 200
    assert len(set(_harmless)) >= 200


@pytest.mark.parametrize("line", _lines)
def test_a_secret_in_a_command_is_masked_and_nothing_else(line: str) -> None:
    assert list(masked_command(shlex.split(_plain(line)))) == shlex.split(_masked(line))


@pytest.mark.parametrize("line", _lines)
def test_a_secret_in_a_typed_line_is_masked(line: str) -> None:
    shown = masked_text(_plain(line))
    assert [secret for secret in _SECRET.findall(line) if secret in shown] == []


@pytest.mark.parametrize("line", _texts)
def test_a_secret_in_a_text_is_masked_and_nothing_else(line: str) -> None:
    assert masked_text(_plain(line)) == _masked(line)


@pytest.mark.parametrize("line", [*map(_masked, _lines), *map(_masked, _texts)])
def test_what_is_masked_stays_as_it_is(line: str) -> None:
    shown = masked_text(line)
    assert masked_text(shown) == shown
    assert shown.count(MASK) >= 1


@pytest.mark.parametrize("line", _harmless)
def test_a_harmless_line_stays_byte_for_byte(line: str) -> None:
    assert masked_text(line) == line


@pytest.mark.parametrize(
    "line", [line for line in _harmless if re.match(r"[\w.-]+( |$)|\w+=", line) and "'" not in line]
)
def test_harmless_words_stay(line: str) -> None:
    words = line.split()
    assert list(masked_command(words)) == words


@pytest.mark.parametrize(
    "part",
    [
        *("a", "key=", "api_key=", 'password="', '{"token": [', "http://a:", "http://a/hook/", "--key ", "curl -u "),
        *(
            "\\",
            "password=\\",
            "authorization: bearer ",
            "a.",
            "name: a ",
            "-----BEGIN PRIVATE KEY-----",
            "&sig",
            "token: ",
            "token a1",
            "password for a",
            "<name>a</name>",
            "a.a ",
            "machine a login ",
            ":a1,pass=",
            "rclone a,pass=",
            "\x1b[0mkey",
            "key%3D",
            "| key ",
            "key\ninput_value=",
            "key: str = ",
            "auth=('a', ",
            "wandb: {a: b, ",
            "gh secret set x ",
        ),
    ],
)
def test_a_long_line_takes_a_bounded_time(part: str) -> None:
    """50,000 characters take at most a second; what backtracks over them takes many."""
    began_s = time.process_time()
    masked_text("key " + part * (50_000 // len(part)))
    assert time.process_time() - began_s < 3


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31mapi_key\x1b[0m=\x1b[32m'k9Xv2abc'\x1b[0m lr=1", "api_key='***' lr=1"),
        ("\x1b[36mpassword\x1b[39;49;00m:\x1b[37m \x1b[39;49;00mhunter2x", "password: ***"),
        ("\\u001b[36mpassword\\u001b[0m: hunter2x", "password: ***"),
        ("\x1b]8;;https://x\x07HF_TOKEN\x1b]8;;\x07=t0k3nvalue1", "HF_TOKEN=***"),
        ("HF_TOKEN\u200b=t0k3nvalue1", "HF_TOKEN=***"),
        ("HF_TOKEN\u00a0=\u00a0t0k3nvalue1", "HF_TOKEN = ***"),
        ("\uff21\uff30\uff29\uff3f\uff2b\uff25\uff39\uff1dk9Xv2abc", "API_KEY=***"),
        ("https://h/x?u=1&password%3Dhunter2x%26b%3D1", "https://h/x?u=1&password=***&b=1"),
        ("&#34;password&#34;: &#34;hunter2x&#34;", "&quot;password&quot;: &quot;***&quot;"),
        ('{"a": "\\u0022password\\u0022: \\u0022hunter2x\\u0022"}', '{"a": "\\"password\\": \\"***\\""}'),
        ("password\\u003dhunter2x", "password=***"),
        ("lr=1\n\x1b[1mpassword\x1b[0m=hunter2x\n\x1b[1mlr\x1b[0m=2\n", "lr=1\npassword=***\n\x1b[1mlr\x1b[0m=2\n"),
    ],
)
def test_a_secret_apart_from_its_name_in_the_bytes_alone_is_masked(line: str, shown: str) -> None:
    """Colours, invisible characters and escaped signs: the line is shown in plain characters then."""
    assert masked_text(line) == shown
    assert masked_text(shown) == shown


def test_colours_and_escaped_signs_without_a_secret_stay() -> None:
    text = "\x1b[31mtokens\x1b[0m=3 &#34;key&#34; a%3Db \\u003d \u200b \uff1d tokens\uff1a 5\n\x1b[1mpad\x1b[0m=<pad>\n"
    assert masked_text(text) == text


def test_a_secret_of_several_lines_is_masked() -> None:
    text = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB\nAwEHoUQDQgAE\n-----END EC PRIVATE KEY-----\nlr: 0.1\n"
    assert masked_text(text) == "-----BEGIN EC PRIVATE KEY-----***-----END EC PRIVATE KEY-----\nlr: 0.1\n"
    assert masked_text("- name: HF_TOKEN\n  value: abc123\n- name: LR\n  value: 3\n") == (
        "- name: HF_TOKEN\n  value: ***\n- name: LR\n  value: 3\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "wandb:\n  project: mistral\n  key: «a94a8fe5ccb19ba6»\nlr: 0.1\n",
        "logger:\n  - wandb:\n      key: '«k9Xv2abc»'  # mine\n",
        "openai:\n  org: x\n  retry:\n    max: 3\n  key: «k1234567»\n",
        "password: >-\n  «hunter2»\nlr: 1\n",
        "password:\n  «hunter2»\nlr: 1\n",
        'openai:\n  api_key: |\n    "«k9Xv2abc»"\n\n  lr: 3\n',
        "api_keys:\n  - «k9Xv2abc»\n  - «k8Xv2abc»\nlr: 1\n",
        "api_keys:\n- «k9Xv2abc»\nlr: 1\n",
        "machine github.com\n  login me\n  password «hunter2»\n",
        "1 validation error for Config\nlogger.api_key\n  Input should be an integer [type=int_parsing,"
        " input_value='«k9Xv2abc»', input_type=str]\nlr\n  Input should be x [input_value='abc12345']\n",
        "PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 2\n«AAAAIGsecretline\nBBBB»\nPrivate-MAC: 0123\n",
        "key: |\n  -----BEGIN RSA PRIVATE KEY-----«\n  MIIEow\n  abc\n  »-----END RSA PRIVATE KEY-----\nlr: 1\n",
        "<property>\n  <name>fs.azure.account.key</name>\n  <value>«Zm9vYmFy»</value>\n</property>\n",
    ],
)
def test_a_secret_on_another_line_than_its_name_is_masked_and_nothing_else(text: str) -> None:
    whole = re.compile("«(.*?)»", re.DOTALL)
    assert masked_text(whole.sub(r"\1", text)) == whole.sub(MASK, text)


@pytest.mark.parametrize(
    "text",
    [
        "wandb:\n  project: mistral\n  key: value\n",
        "wandb:\n  key: k9Xv2ab\n",  # shorter than any key
        "metrics:\n  key: eval/accuracy_top_5_averaged_v2\n",
        "sort:\n  key: step0123456789abcdefghij\n",
        "wandb:\n  project: x\ncache:\n  key: a94a8fe5ccb19ba6\n",
        "secrets:\n  - hf-token\n  - wandb\n",
        "password:\n  min_length: 8\n  hint: none\n",
        "password:\n  The password of the data base, 8 letters\n",
        "token:\n  type: bearer\n",
        "token:\n  2048\n",
        "password:\nlr\n",
    ],
)
def test_harmless_yaml_stays(text: str) -> None:
    assert masked_text(text) == text


def test_secrets_of_an_environment_are_masked_and_the_rest_is_left() -> None:
    environment = {"HF_TOKEN": "abc", "PWD": "/home/me", "NCCL_DEBUG": "INFO", "URL": "https://me:pw1@h", "MY_KEY": "x"}
    masked = {"HF_TOKEN": "***", "PWD": "/home/me", "NCCL_DEBUG": "INFO", "URL": "https://me:***@h", "MY_KEY": "***"}
    assert masked_environment(environment) == masked


def test_a_masker_knows_its_secrets_where_nothing_announces_them() -> None:
    masker = Masker({"WANDB_API_KEY": "zq81kdmw", "LR": "0.123456"}, ("train.py", "--password", "pa/ss w0rd", "--lr=3"))
    assert masker.text("server said: zq81kdmw was refused, lr 0.123456") == "server said: *** was refused, lr 0.123456"
    assert masker.text("tried pa/ss w0rd and pa%2Fss%20w0rd") == "tried *** and ***"
    assert masker.words(("echo", "zq81kdmw")) == ("echo", "***")


def test_a_masker_leaves_words_that_are_too_short_to_be_known() -> None:
    masker = Masker({"DB_PASSWORD": "train", "API_TOKEN": "a1b2c"})
    assert masker.text("train.py took a1b2c") == "train.py took a1b2c"
    assert Masker({"DB_PASSWORD": "a1b2cd"}).text("took a1b2cd") == "took ***"
    assert Masker({"DB_PASSWORD": "abcdefghijk"}).text("took abcdefghijk") == "took abcdefghijk"
    assert Masker({"DB_PASSWORD": "abcdefghijkl"}).text("took abcdefghijkl") == "took ***"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "clientSecret", "PGPASSWORD", "x-api-key", "logger.wandb.api_key", "--pass"]
)
def test_a_name_of_a_secret(name: str) -> None:
    assert names_a_secret(name)


@pytest.mark.parametrize("name", ["eos_token", "sort-key", "PWD", "backward_pass", "password_file", "key", ""])
def test_another_name(name: str) -> None:
    assert not names_a_secret(name)
