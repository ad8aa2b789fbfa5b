"""Mask likely secrets in a Snapshot: passwords in mount options and URLs, tokens, keys."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from flatout.records.snapshot import Output, Snapshot
from flatout.secrets import masked_environment, masked_text


def without_secrets(content: Snapshot) -> Snapshot:
    """Mask the secrets in an entire Snapshot before it is written to a bundle or quoted by checks."""
    return msgspec.structs.replace(
        content,
        files=_masked_values(content.files),
        problems=_masked_values(content.problems),
        outputs={name: _masked_output(output) for name, output in content.outputs.items()},
        environment=None if content.environment is None else masked_environment(content.environment),
    )


def _masked_values(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: masked_text(text) for name, text in texts.items()}


def _masked_output(output: Output) -> Output:
    text = None if output.text is None else masked_text(output.text)
    return msgspec.structs.replace(output, text=text, problem=masked_text(output.problem))
