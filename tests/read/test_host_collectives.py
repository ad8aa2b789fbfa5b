"""Sizes of collectives on the CPU, which are recorded as the shapes and types of their tensors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.read.samples import START_US, event

from flatout.read.columns import BlockDecoder
from flatout.records.events import NULL, CollectiveArgs


def decoded(name: str, *, cat: str = "user_annotation", **args: Any) -> tuple[CollectiveArgs | None, BlockDecoder]:
    decoder = BlockDecoder()
    columns = decoder.decode(msgspec.json.encode(event(cat, name, START_US, 5.0, **args)))
    index = columns["collective"][0]
    return (None if index == NULL else decoder.finish().collectives[index]), decoder


@pytest.mark.parametrize(
    ("name", "shapes", "types", "num_elements", "dtype"),
    [
        ("gloo:all_reduce", [[524288]], ["float"], 524288, "Float"),
        ("gloo:all_reduce", [[512, 512], [512]], ["c10::BFloat16", "c10::BFloat16"], 512 * 512 + 512, "BFloat16"),
        ("gloo:broadcast", [[]], ["long int"], 1, "Long"),
        ("gloo:reduce", [[0]], ["double"], 0, "Double"),
        ("mpi:allreduce", [[3, 5]], ["c10::Half"], 15, "Half"),
    ],
)
def test_the_size_follows_from_the_shapes(
    name: str, shapes: list[list[int]], types: list[str], num_elements: int, dtype: str
) -> None:
    args, _ = decoded(name, **{"Input Dims": shapes, "Input type": types})
    assert args is not None
    assert (args.num_input_elements, args.num_output_elements, args.dtype) == (num_elements, num_elements, dtype)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("gloo:all_reduce", {}),
        ("gloo:all_reduce", {"Input Dims": [[8]]}),
        ("gloo:all_reduce", {"Input Dims": [], "Input type": []}),
        ("gloo:all_reduce", {"Input Dims": [[[8]]], "Input type": ["TensorList"]}),
        ("gloo:all_reduce", {"Input Dims": [[8]], "Input type": ["a type of the future"]}),
        ("gloo:all_reduce", {"Input Dims": [[8], [8]], "Input type": ["float", "double"]}),
        ("gloo:all_reduce", {"Input Dims": [["x"]], "Input type": ["float"]}),
        ("gloo:all_gather", {"Input Dims": [[8]], "Input type": ["float"]}),  # one rank's share
        ("gloo:all_reduce_of_mine", {"Input Dims": [[8]], "Input type": ["float"]}),
        ("my block", {"Input Dims": [[8]], "Input type": ["float"]}),
    ],
)
def test_a_size_that_is_not_recorded_stays_unknown(name: str, args: dict[str, Any]) -> None:
    assert decoded(name, **args)[0] is None


def test_an_operator_on_the_host_is_no_collective() -> None:
    assert decoded("gloo:all_reduce", cat="cpu_op", **{"Input Dims": [[8]], "Input type": ["float"]})[0] is None


@pytest.mark.parametrize("shapes", [[[8, 1024], []], None])
def test_shapes_are_decoded_on_the_fast_way(shapes: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tolerant decoder reads damaged text only: it takes several times as long."""
    from flatout.read import lenient

    def refuse(*_: object) -> None:
        raise AssertionError("undamaged text went to the tolerant decoder")

    monkeypatch.setattr(lenient, "decode", refuse)
    _, decoder = decoded("aten::mm", cat="cpu_op", **{"Input Dims": shapes, "Input type": ["float", "Scalar"]})
    assert decoder.finish().shapes == ([] if shapes is None else [b"[[8,1024],[]]"])
