"""Every knob and every change of the catalogue is sound, and nothing unsafe can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from tests.change.jobs import EVERY_KIND, SOCKET_JOB, facts

from flatout.change.catalogue import FAMILIES, KNOBS, all_changes, problems, set_by_script, unmet_needs
from flatout.change.forbidden import FORBIDDEN, forbidden_settings
from flatout.change.patches import PATCHES, patch_problem
from flatout.change.tuner_plugin import plugin_folder
from flatout.diagnose.rules import RULES
from flatout.records.change import SAFETIES, Change, JobFacts, Knob, Need, Patch
from flatout.records.diagnosis import PART_NAMES

OWN_PLUGIN = str(plugin_folder() / "libnccl-tuner-flatout-0123.so")
FINDINGS = {rule.NAME for rule in RULES}
KNOB_NAMES = {knob.name for knob in KNOBS}
EVERYTHING = {change.name: change for kind in (*EVERY_KIND, JobFacts()) for change in all_changes(kind)}
# Their causes are in the script, the data or the machine: nothing that can be set from outside removes them.
WITHOUT_A_CHANGE = {
    "pipeline-bubble", "late-in-turn", "idle-devices",
    "periodic-stall", "epoch-sawtooth", "drift",
    "separate-reductions", "repeated-prefill",
}  # fmt: skip


def knob(name: str) -> Knob:
    return next(knob for knob in KNOBS if knob.name == name)


def test_names_of_knobs_are_unique_and_kebab_case() -> None:
    assert len(KNOB_NAMES) == len(KNOBS)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in KNOB_NAMES)


@pytest.mark.parametrize("kind", range(len(EVERY_KIND)))
def test_names_of_changes_are_unique(kind: int) -> None:
    names = [change.name for change in all_changes(EVERY_KIND[kind])]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("change", EVERYTHING.values(), ids=EVERYTHING)
def test_each_change_is_valid(change: Change) -> None:
    assert problems(change) == ()
    assert change.name == change.knob.name + (f"={change.value}" if change.value else "")
    assert all(isinstance(value, str) for value in change.environment.values())


@pytest.mark.parametrize("one", KNOBS, ids=lambda knob: knob.name)
def test_each_knob_says_what_it_is(one: Knob) -> None:
    assert one.safety in SAFETIES
    assert one.summary[0].islower() or one.summary.startswith(("Slurm", "TF32"))
    assert not one.summary.endswith(".")
    assert one.doc.endswith(".")
    assert one.source
    assert "loss" in one.gates
    assert one.answers or one.reduces or one.saves_memory
    assert set(one.answers) <= FINDINGS
    assert set(one.reduces) <= set(PART_NAMES)
    assert all(0 < share <= 1 for share in (*one.answers.values(), *one.reduces.values()))
    assert {*one.excludes, *one.requires, *one.combines_with} <= KNOB_NAMES - {one.name}
    assert all(need.fact in JobFacts.__struct_fields__ for need in one.needs)


def test_every_knob_has_a_change_and_every_family_is_its_file() -> None:
    assert {change.knob.name for change in EVERYTHING.values()} == KNOB_NAMES
    for family in FAMILIES:
        assert family.__name__ == f"flatout.change.{family.FAMILY}"
        assert all(one.family == family.FAMILY for one in family.KNOBS)
        assert family.__file__ is not None
        assert len(Path(family.__file__).read_text().splitlines()) < 250


def test_every_need_is_met_by_some_job() -> None:
    unmet = [c.name for c in EVERYTHING.values() if all(unmet_needs(c, kind) for kind in EVERY_KIND)]
    assert unmet == []


def test_every_finding_that_can_be_mended_from_outside_has_an_exact_or_rounding_change() -> None:
    answered = {name for one in KNOBS for name in one.answers}
    assert answered == FINDINGS - WITHOUT_A_CHANGE


def test_every_patch_is_used_and_every_change_of_communication_is_checked_for_its_data() -> None:
    of_catalogue = {c.patch.name for c in EVERYTHING.values() if c.patch is not None}
    # LAMB comes with the user's own larger batches only, and a share of the work with `run --adapt-semantic`.
    assert of_catalogue | {"lamb", "work_share"} == set(PATCHES)
    for change in EVERYTHING.values():
        if change.family in ("nccl", "fsdp2") or change.knob.name in ("ddp-bucket", "ddp-no-sync", "ddp-compression"):
            assert "data" in change.knob.gates


def test_all_of_it_survives_a_journal() -> None:
    for change in EVERYTHING.values():
        assert msgspec.json.decode(msgspec.json.encode(change), type=Change) == change


# ---- safety ----


def test_lower_precision_other_kernels_and_lossy_compression_are_rounding() -> None:
    rounding = {one.name for one in KNOBS if one.safety == "rounding"}
    on_cpu = {"autocast-cpu", "compile-cpu", "fused-attention-cpu"}
    caches = {"kv-cache", "static-kv-cache", "session-graph"}
    assert rounding == {"tf32", "autocast", "compile", "fused-attention", "ddp-compression"} | on_cpu | caches | {
        *("autocast-fp16", "fp8", "liger-kernels", "xformers-attention", "session-provider", "onnx-export"),
    }


@pytest.mark.parametrize("change", EVERYTHING.values(), ids=EVERYTHING)
def test_nothing_in_the_catalogue_is_fenced_off(change: Change) -> None:
    for kind in EVERY_KIND:
        assert forbidden_settings(kind.environment | change.environment) == ()


@pytest.mark.parametrize(
    "environment",
    [
        {"NCCL_CHUNK_SIZE": "2097152"},
        {"NCCL_P2P_NET_CHUNKSIZE": "1048576"},
        {"NCCL_P2P_NET_CHUNKSIZE": "524288"},
        {"NCCL_P2P_NET_CHUNKSIZE": "1048576", "NCCL_BUFFSIZE": "8388608"},
        {"NCCL_PROTO": "LL128"},
        {"NCCL_PROTO": "Simple,ll128"},
        {"NCCL_PROTO": "^LL;allreduce:LL128"},
        {"NCCL_PROTO": "Simple"},
        {"NCCL_ALGO": "Ring"},
        {"NCCL_NTHREADS": "384"},
        {"NCCL_LL128_BUFFSIZE": "1000"},
        {"NCCL_BUFFSIZE": "5000000"},
        {"NCCL_BUFFSIZE": "a lot"},
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_IB_SL": "1"},
        {"NCCL_IB_TC": "106"},
        {"NCCL_IB_GID_INDEX": "3"},
        {"NCCL_TUNER_PLUGIN": "example"},
        {"NCCL_TUNER_PLUGIN": OWN_PLUGIN},  # without a table
        {"NCCL_TUNER_PLUGIN": "/tmp/libnccl-tuner-flatout-0123.so", "FLATOUT_NCCL_TABLE": "table.txt"},
        {"NCCL_TUNER_PLUGIN": "/cache/libnccl-tuner-other.so", "FLATOUT_NCCL_TABLE": "table.txt"},
        # Since NCCL 2.31, the collectives that are not named are left without an algorithm.
        {"NCCL_ALGO": "allreduce:^NVLS"},
        {"NCCL_PROTO": "allreduce:^LL;allgather:^LL;reducescatter:^LL;broadcast:^LL"},
    ],
    ids=str,
)
def test_what_is_fast_and_wrong_is_fenced_off_with_a_reason(environment: dict[str, str]) -> None:
    lines = forbidden_settings(environment)
    assert lines
    assert all(re.fullmatch(r"NCCL_\w+=.*: .+", line) and "\n" not in line for line in lines)


@pytest.mark.parametrize(
    "environment",
    [
        {"NCCL_P2P_NET_CHUNKSIZE": "524288", "NCCL_BUFFSIZE": "8388608"},
        {"NCCL_ALGO": "^NVLS"},
        {"NCCL_ALGO": "AllReduce:^NVLS; allgather:^Tree;reducescatter:^Tree;broadcast:^Tree;reduce:^Tree"},
        {"NCCL_ALGO": "^Tree;allreduce:^NVLS"},
        {"NCCL_TUNER_PLUGIN": OWN_PLUGIN, "FLATOUT_NCCL_TABLE": "table.txt"},
        {"NCCL_PROTO": "^LL128"},
        {"NCCL_NTHREADS": "256"},
        {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "16"},
        {"NCCL_DEBUG": "INFO"},
    ],
    ids=str,
)
def test_what_is_safe_is_not(environment: dict[str, str]) -> None:
    assert forbidden_settings(environment) == ()


def test_every_fence_gives_one_line() -> None:
    for name, rule in FORBIDDEN.items():
        reason = rule("not a value", {name: "not a value"})
        assert reason is None or "\n" not in reason


# ---- needs ----


def test_what_is_not_known_is_not_met_and_the_line_says_what() -> None:
    socket = next(change for change in all_changes(SOCKET_JOB) if change.knob.name == "nccl-sockets")
    assert unmet_needs(socket, SOCKET_JOB) == ()
    assert unmet_needs(socket, facts(transport=None)) == (
        "nccl-sockets=2x2+8 needs transport is socket, which is unknown",
    )
    assert unmet_needs(socket, facts(collective_bytes=16_384)) == (
        "nccl-sockets=2x2+8 needs collective bytes at least 1048576, but it is 16384",
    )


@pytest.mark.parametrize(
    ("torch", "is_met"),
    [("2.11.0+cu128", True), ("2.9", True), ("2.8.1", False), ("2.10.0a0+git", True), (None, False)],
)
def test_versions_are_ordered_as_numbers(torch: str | None, is_met: bool) -> None:
    change = next(c for c in all_changes(SOCKET_JOB) if c.knob.name == "torchrun-numa-binding")
    assert (unmet_needs(change, facts(torch=torch)) == ()) is is_met


def test_a_need_of_not_and_of_at_most() -> None:
    static = next(c for c in all_changes(SOCKET_JOB) if c.knob.name == "ddp-static-graph")
    assert unmet_needs(static, facts(passes_per_step=1)) == ()
    assert len(unmet_needs(static, facts(passes_per_step=4))) == 1
    other = msgspec.structs.replace(
        static, knob=msgspec.structs.replace(static.knob, needs=(Need(fact="device", relation="is not", value="cpu"),))
    )
    assert unmet_needs(other, SOCKET_JOB) == ()


def test_what_the_script_does_itself_is_known() -> None:
    assert set_by_script(facts(loader_workers=4)) == {"dataloader-workers", "optimizer-fused", "autocast"}


# ---- the wrong is found ----


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (Patch(name="no-op"), "there is no patch `no-op`"),
        (Patch(name="ddp", parameters={"rank": 1}), "has no parameter `rank`"),
        (Patch(name="ddp", parameters={"bucket_cap_mb": 0}), "does not take bucket_cap_mb = 0"),
        (Patch(name="ddp", parameters={"bucket_cap_mb": True}), "does not take bucket_cap_mb = True"),
        (Patch(name="dataloader", parameters={"pin_memory": False}), "does not take pin_memory = False"),
        (Patch(name="ddp_hook", parameters={"hook": "noop"}), "does not take hook = noop"),
    ],
)
def test_a_wrong_patch_is_named(patch: Patch, words: str) -> None:
    assert words in (patch_problem(patch) or "")


def test_a_change_that_does_nothing_or_is_out_of_range_is_named() -> None:
    workers = knob("dataloader-workers")
    assert problems(Change(name="x", knob=workers, value="4")) == ("x does nothing",)
    many = Change(name="x", knob=workers, value="99", environment={"A": "1"})
    assert problems(many) == ("x: the value `99` is outside the knob's range",)
    wrong = Change(name="x", knob=knob("nccl-no-nvls"), environment={"NCCL_CHUNK_SIZE": "1"})
    assert "Xid 31" in problems(wrong)[0]
