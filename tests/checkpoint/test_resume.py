"""A resumed training ends with bitwise the same weights as an uninterrupted one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkpoint.ranks import run

KINDS = [("plain", 1), ("ddp", 2), ("fsdp", 2)]


@pytest.mark.parametrize(("kind", "num_ranks"), KINDS)
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, kind: str, num_ranks: int) -> None:
    whole = run(tmp_path / "whole", 12, kind=kind, num_ranks=num_ranks)
    assert whole.codes == [0] * num_ranks and whole.start == 0
    first = run(tmp_path / "parts", 7, kind=kind, num_ranks=num_ranks)
    second = run(tmp_path / "parts", 12, kind=kind, num_ranks=num_ranks)
    assert second.codes == [0] * num_ranks and second.start == 6
    assert first.losses | second.losses == whole.losses
    assert second.digest == whole.digest != first.digest
