from __future__ import annotations

import pytest

from flatout.secrets import masked_command


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["--hf-token", "abc", "train.py"], ["--hf-token", "***", "train.py"]),
        (["HF_TOKEN=abc", "python"], ["HF_TOKEN=***", "python"]),
        (["WANDB_API_KEY=abc=def"], ["WANDB_API_KEY=***"]),
        (["--db.password", "x y"], ["--db.password", "***"]),
        (["--clientSecret", "abc"], ["--clientSecret", "***"]),
        (["-password", "abc"], ["-password", "***"]),
        (["s3://user:hunter2@host/bucket"], ["s3://user:***@host/bucket"]),
        (["--header", "Authorization: Bearer abc.def"], ["--header", "Authorization: Bearer ***"]),
        (["hf_abcdefghijklmnop"], ["***"]),
        (["x=sk-abcdefghijklmnop"], ["x=***"]),
    ],
)
def test_a_secret_is_masked(command: list[str], masked: list[str]) -> None:
    assert masked_command(command) == tuple(masked)


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node", "4", "train.py"],
        ["--max-tokens", "512", "--num_tokens=8", "--tokenizer", "gpt2"],
        ["--eos-token", "<end>", "--pad_token=<pad>"],
        ["--sort-key", "time", "KEY=5", "--monkey", "x"],
        ["--use-token", "--steps", "3"],
        ["lr=0.1", "--path=https://host:8080/a@b"],
        [],
    ],
)
def test_what_is_no_secret_is_left(command: list[str]) -> None:
    assert masked_command(command) == tuple(command)


def test_an_argument_that_is_no_utf8_can_be_written_as_json() -> None:
    assert masked_command(["trace\udcff.json"]) == ("trace\\udcff.json",)
