"""Changes that fit together are merged; those that do not are refused in one line."""

from __future__ import annotations

import msgspec
import pytest
from tests.change.jobs import EVERY_KIND, SOCKET_JOB, facts

from flatout.change.catalogue import KNOBS, all_changes
from flatout.change.combine import combine
from flatout.change.setting import setting
from flatout.errors import UsageError
from flatout.records.change import Argument, Change, JobFacts, Patch

ALL = {change.name: change for kind in EVERY_KIND for change in all_changes(kind)}


def test_nothing_combined_is_the_baseline() -> None:
    nothing = combine([])
    assert (nothing.name, nothing.safety, nothing.gates) == ("baseline", "exact", ())


def test_environment_patches_and_gates_are_merged() -> None:
    merged = combine(
        [ALL[name] for name in ("nccl-sockets=2x2+8", "ddp-bucket=100", "ddp-bucket-view", "dataloader-workers=15")]
    )
    assert merged.name == "nccl-sockets=2x2+8 + ddp-bucket=100 + ddp-bucket-view + dataloader-workers=15"
    assert merged.environment["NCCL_MIN_NCHANNELS"] == "8"
    assert merged.patches == (
        Patch(name="ddp", parameters={"bucket_cap_mb": 100, "gradient_as_bucket_view": True}),
        Patch(name="dataloader", parameters={"num_workers": 15}),
    )
    assert (merged.safety, merged.gates) == ("exact", ("data", "loss"))


def test_a_set_is_as_safe_as_its_least_safe_change() -> None:
    assert combine([ALL["channels-last"], ALL["autocast=bfloat16"]]).safety == "rounding"


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("ddp-bucket=50", "ddp-bucket=100"), "ddp-bucket=50 and ddp-bucket=100 set the same knob"),
        (("optimizer-fused", "optimizer-foreach"), "optimizer-fused and optimizer-foreach exclude each other"),
        (("ddp-no-sync=4", "ddp-static-graph"), "ddp-no-sync=4 and ddp-static-graph exclude each other"),
        (("nccl-channels=8", "nccl-sockets=2x2+8"), "nccl-channels=8 and nccl-sockets=2x2+8 exclude each other"),
        (("dataloader-prefetch=4",), "dataloader-prefetch=4 requires dataloader-workers"),
        (("non-blocking-copies",), "non-blocking-copies requires dataloader-pin-memory"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(names: tuple[str, ...], line: str) -> None:
    for order in (names, names[::-1]):
        with pytest.raises(UsageError) as caught:
            combine([ALL[name] for name in order])
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        combine([ALL[name] for name in names])
    assert str(caught.value) == line


def test_what_the_script_does_itself_need_not_be_added() -> None:
    assert combine([ALL["dataloader-prefetch=4"]], facts(loader_workers=4)).patches


def test_every_pair_of_the_catalogue_is_merged_or_refused_in_one_line() -> None:
    turned = JobFacts(loader_workers=2, loader_pins_memory=True)
    messages, num_merged = [], 0
    for one in ALL.values():
        for other in ALL.values():
            try:
                both = combine([one, other], turned)
            except UsageError as error:
                messages.append(str(error))
            else:
                assert both.changes == (one, other)
                assert one.knob.name != other.knob.name
                num_merged += 1
    assert num_merged > len(messages) > len(ALL)
    assert not any("\n" in message for message in messages)


def test_changes_worth_trying_together_do_fit() -> None:
    turned = JobFacts(loader_workers=2, loader_pins_memory=True)
    first = {change.knob.name: change for change in reversed(ALL.values())}
    for knob in KNOBS:
        for other in knob.combines_with:
            assert combine([first[knob.name], first[other]], turned).changes


def test_the_fence_stands_whoever_brings_the_change() -> None:
    knob = msgspec.structs.replace(ALL["nccl-no-nvls"].knob, name="mine")
    for environment in ({"NCCL_CHUNK_SIZE": "2097152"}, {"NCCL_PROTO": "LL128"}):
        with pytest.raises(UsageError, match="mine: NCCL_"):
            combine([setting(knob, environment=environment)])


def test_what_is_unsafe_only_together_with_the_jobs_own_environment_is_refused() -> None:
    own = facts(environment={"NCCL_SOCKET_NTHREADS": "16", "NCCL_CHUNK_SIZE": "1048576"})
    knob = msgspec.structs.replace(ALL["nccl-no-nvls"].knob, name="mine")
    with pytest.raises(UsageError, match="NCCL_NSOCKS_PERTHREAD=8: at most 16 threads"):
        combine([setting(knob, environment={"NCCL_NSOCKS_PERTHREAD": "8"})], own)
    assert combine([ALL["ddp-bucket=100"]], own).patches  # what the user set is the user's


def test_two_values_for_one_variable_parameter_or_argument_are_refused() -> None:
    a = msgspec.structs.replace(ALL["nccl-no-nvls"].knob, name="a")
    b = msgspec.structs.replace(a, name="b")

    def both(one: Change, other: Change) -> None:
        combine([one, other])

    with pytest.raises(UsageError, match="a and b both set OMP, to different values"):
        both(setting(a, environment={"OMP": "1"}), setting(b, environment={"OMP": "2"}))
    with pytest.raises(UsageError, match="a and b both set every of the patch"):
        both(
            setting(a, patch="activation_checkpointing", every=1), setting(b, patch="activation_checkpointing", every=2)
        )
    with pytest.raises(UsageError, match="a and b both set the argument --x"):
        both(setting(a, argument=Argument(words=(("--x=1",),))), setting(b, argument=Argument(words=(("--x", "2"),))))
    combine([setting(a, environment={"OMP": "1"}), setting(b, environment={"OMP": "1"})])


def test_launchers_get_their_own_words() -> None:
    assert combine([ALL["torchrun-numa-binding=node"]], SOCKET_JOB).launch == {"torchrun": ("--numa-binding=node",)}
