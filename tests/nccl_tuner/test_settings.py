"""The ways to apply what was measured, and the candidates for each transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.change.forbidden import forbidden_settings
from flatout.change.tuner_plugin import plugin_folder
from flatout.errors import UsageError
from flatout.nccl_tuner.candidates import (
    all_settings,
    all_spaces,
    find_space,
    process_starts,
    start_of_choices,
)
from flatout.nccl_tuner.plan import Law, SimulatedFabric
from flatout.nccl_tuner.settings import (
    FUNCTIONS,
    excluding_algorithms,
    options_problem,
    supports_functions,
    table_variables,
)
from flatout.records.collective_table import ALGORITHMS, COLLECTIVES, MAX_CHANNELS, PROTOCOLS

# The functions and algorithms as NCCL's parser of NCCL_ALGO names them.
NCCL_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
NCCL_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")


def left_by(value: str, *, unnamed_have_none: bool) -> dict[str, set[str]]:
    """The algorithms that a value of NCCL_ALGO leaves to each function, as NCCL reads it.

    Up to NCCL 2.30 a function that is not named keeps all of them; since 2.31 it has none.
    """
    left: dict[str, set[str]] = {}
    for item in value.split(";"):
        function, _, names = item.partition(":")
        assert function in NCCL_FUNCTIONS
        assert names.startswith("^")
        excluded = set(names[1:].split(","))
        assert excluded <= set(NCCL_ALGORITHMS)
        left[function] = set(NCCL_ALGORITHMS) - excluded
    rest = set() if unnamed_have_none else set(NCCL_ALGORITHMS)
    return {function: left.get(function, rest) for function in NCCL_FUNCTIONS}


@pytest.mark.parametrize("unnamed_have_none", [False, True])
@pytest.mark.parametrize(
    ("excluded", "gone"),
    [
        ({"all_reduce": ("tree",)}, {"allreduce": {"Tree"}}),
        ({"all_reduce": ("ring", "nvls_tree")}, {"allreduce": {"Ring", "NVLSTree"}}),
        ({"all_gather": ("nvls",), "reduce_scatter": ("pat",)}, {"allgather": {"NVLS"}, "reducescatter": {"PAT"}}),
        ({}, {}),
    ],
)
def test_an_exclusion_takes_nothing_from_what_it_does_not_name(
    excluded: dict[str, tuple[str, ...]], gone: dict[str, set[str]], unnamed_have_none: bool
) -> None:
    value = excluding_algorithms(excluded)
    names = dict(zip(ALGORITHMS, NCCL_ALGORITHMS, strict=True))
    for collective, supported in FUNCTIONS.items():
        function = collective.replace("_", "")
        left = left_by(value, unnamed_have_none=unnamed_have_none)[function] & {names[each] for each in supported}
        assert left == {names[each] for each in supported} - gone.get(function, set())
    assert forbidden_settings({"NCCL_ALGO": value}) == ()


def test_an_exclusion_that_leaves_no_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="broadcast would have no algorithm left"):
        excluding_algorithms({"broadcast": ("ring",)})


@pytest.mark.parametrize(("version", "is_supported"), [((2, 23, 4), False), ((2, 24, 0), True), ((3, 0), True)])
def test_exclusions_by_collective_need_nccl_2_24(version: tuple[int, ...], is_supported: bool) -> None:
    assert supports_functions(version) == is_supported


@pytest.mark.parametrize(
    ("min_ctas", "max_ctas", "problem"),
    [
        (None, None, None),
        (16, 16, None),
        (1, 64, None),
        (16, None, "min_ctas alone is refused"),
        (None, 16, "max_ctas alone is refused"),
        (0, 16, "must be from 1 to 64"),
        (16, 65, "must be from 1 to 64"),
        (17, 16, "must be from 1 to 64"),
    ],
)
def test_options_of_a_communicator_are_set_together(
    min_ctas: int | None, max_ctas: int | None, problem: str | None
) -> None:
    found = options_problem(min_ctas, max_ctas)
    assert (found is None) == (problem is None)
    assert problem is None or (found is not None and problem in found)


def test_the_variables_of_a_table_are_allowed_and_those_of_another_plugin_are_not() -> None:
    variables = table_variables(Path("/t/table.txt"), plugin_folder() / "libnccl-tuner-flatout-0123456789abcdef.so")
    assert forbidden_settings(variables) == ()
    for library in ("/c/libnccl-tuner-example.so", "/c/libnccl-tuner-flatout-0123456789abcdef.so"):
        assert forbidden_settings({**variables, "NCCL_TUNER_PLUGIN": library}) != ()


def test_each_setting_of_a_space_says_when_it_is_read_and_none_is_forbidden() -> None:
    reads = {setting.name: setting.reads for setting in all_settings()}
    assert len(reads) == len(all_settings())
    for space in all_spaces():
        for start in process_starts(space):
            assert {reads[name] for name in start.environment} <= {"process"}
            assert forbidden_settings(start.environment) == ()
        assert {reads[name] for name in ("table", "min_ctas", "max_ctas", "threads")} == {"communicator"}


def test_choices_are_those_that_a_table_can_hold() -> None:
    for space in all_spaces():
        start = start_of_choices(space, "default", {}, has_plugin=True)
        names = [candidate.name for candidate in start.candidates]
        assert names[0] == "default"
        assert len(set(names)) == len(names)
        for candidate in start.candidates[1:]:
            assert candidate.algorithm in (None, *ALGORITHMS)
            assert candidate.protocol in (None, *PROTOCOLS)
            assert candidate.max_channels is None or 1 <= candidate.max_channels <= MAX_CHANNELS
            assert options_problem(candidate.min_ctas, candidate.max_ctas) is None
            assert all(candidate.row(collective).collective == collective for collective in COLLECTIVES)
        without = start_of_choices(space, "default", {}, has_plugin=False)
        assert not any(candidate.has_row for candidate in without.candidates)


def test_over_sockets_more_channels_alone_are_not_offered() -> None:
    """Two H200 over TCP: 2.9 GB/s by default, 2.15 with 16 channels alone, 17 with threads and sockets."""
    space = find_space("socket")
    for start in process_starts(space)[1:]:
        assert {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_MIN_NCHANNELS"} <= set(start.environment)
    assert space.options == ()


def test_the_inline_messages_that_can_be_under_way_fit_into_a_socket() -> None:
    """NCCL waits until an inline message is sent whole; eight can be under way, and Linux begins with 151 KiB."""
    starts = process_starts(find_space("socket"))
    sizes = [int(start.environment["NCCL_SOCKET_INLINE"]) for start in starts[1:]]
    assert sizes
    assert all(8 * size <= 151 * 1024 for size in sizes)


def test_an_unknown_transport_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="socket, shared_memory, pcie, nvlink, infiniband, efa, gloo, but got ib"):
        find_space("ib")


def test_the_law_with_the_most_conditions_holds_wherever_it_stands_in_a_fabrics_file() -> None:
    """The example in the guide begins with the default."""
    default = Law(latency_s=90e-6, bytes_per_s=3e9)
    sockets = Law(settings="sockets 2x2+8", latency_s=140e-6, bytes_per_s=17e9)
    gather = Law(collective="all_gather", latency_s=1e-6, bytes_per_s=1e9)
    for laws in ((default, gather, sockets), (sockets, gather, default)):
        fabric = SimulatedFabric(transport="socket", law=laws)
        assert fabric.law_of("sockets 2x2+8", "default", "all_reduce") == sockets
        assert fabric.law_of("sockets 2x2+8", "default", "all_gather") == sockets
        assert fabric.law_of("default", "default", "all_gather") == gather
        assert fabric.law_of("default", "default", "all_reduce") == default
        assert fabric.law_of("default", "tree", "all_reduce") is None
