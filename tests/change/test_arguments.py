"""The user's own arguments as knobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.change.jobs import SOCKET_JOB, diagnosis, facts

from flatout.change.arguments import current_values, knob_changes, parse_knob, with_arguments
from flatout.change.candidates import candidates
from flatout.change.combine import combine
from flatout.errors import UsageError
from flatout.records.change import Argument, JobFacts, Patch

TRAIN = ("torchrun", "--nproc-per-node", "4", "train.py", "--batch-size", "8", "--accumulate=4", "-j", "4")


def test_one_value_at_each_place() -> None:
    knob = parse_knob("batch={8, 16,32}:--batch-size={}")
    assert (knob.names, knob.safety) == (("batch",), None)
    assert knob.values == (("8",), ("16",), ("32",))
    assert knob.words == (("--batch-size={}",),)


def test_a_value_as_the_next_word_a_plain_flag_and_quotation_marks() -> None:
    knob = parse_knob("mode={a,b c}:--mode {} --fast --name='x'")
    assert knob.words == (("--mode", "{}"), ("--fast",), ("--name=x",))
    changes = knob_changes(knob, TRAIN, JobFacts(), "semantic")
    assert changes[1].argument == Argument(words=(("--mode", "b c"), ("--fast",), ("--name=x",)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have the form"),
        ("batch", "must have the form"),
        ("batch={8,16}", "must have the form"),
        ("batch=8,16:--batch-size={}", "must have the form"),
        ("={8}:--b={}", "needs a name"),
        ("Batch={8}:--b={}", "needs a name"),
        ("a*a={1*2}:--a={} --b={}", "needs a name"),
        ("batch={}:--b={}", "has an empty value"),
        ("batch={8,,16}:--b={}", "has an empty value"),
        ("batch={8,8}:--b={}", "has the same value twice"),
        ("batch={8,16}:--batch-size", "has 0 places `{}` for 1 value"),
        ("batch={8,16}:--b={} --c={}", "has 2 places `{}` for 1 value"),
        ("batch={8,16}:{}", "needs an argument before a `{}` that stands alone"),
        ("batch={8,16}:--b='{}", "unfinished quotation"),
        ("batch/safe={8,16}:--b={}", "must state its safety as exact, rounding, semantic, but got `safe`"),
        ("a*b={8,16}:--a={} --b={}", "needs 2 factors in each value"),
        ("a*b={8*x,16*2}:--a={} --b={}", "must be whole numbers"),
        ("a*b={8*4,16*4}:--a={} --b={}", "keeps a product, but its values give 32, 64"),
        ("batch={8\n,16}:", "has 0 places"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_knob(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@given(st.text(alphabet="ab*{}=:,/- '\"\n8", max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        knob = parse_knob(text)
    except UsageError as error:
        message = str(error)
    else:
        assert all(len(value) == len(knob.names) for value in knob.values)
    assert "\n" not in message


# ---- safety ----


def test_an_argument_is_semantic_unless_the_user_says_else() -> None:
    with pytest.raises(UsageError, match=r"the knob `batch` is semantic \(it can change what is trained\)") as caught:
        knob_changes(parse_knob("batch={8,16}:--batch-size={}"), TRAIN, SOCKET_JOB)
    assert "--allow semantic" in caught.value.hint
    changes = knob_changes(parse_knob("batch={8,16}:--batch-size={}"), TRAIN, SOCKET_JOB, "semantic")
    names = [(c.name, c.safety) for c in changes]
    assert names == [("batch=16", "semantic"), ("batch=16+lamb", "semantic")]  # 8 is what it has
    assert changes[1].patch == Patch(name="lamb")
    assert changes[1].argument == changes[0].argument
    by_sgd = knob_changes(parse_knob("batch={8,16}:--batch-size={}"), TRAIN, facts(optimizer="SGD"), "semantic")
    assert [c.name for c in by_sgd] == ["batch=16"]
    smaller = knob_changes(parse_knob("batch={4}:--batch-size={}"), TRAIN, SOCKET_JOB, "semantic")
    assert [c.name for c in smaller] == ["batch=4"]
    workers = knob_changes(parse_knob("workers/exact={4,8}:-j {}"), TRAIN, SOCKET_JOB)
    assert [(c.name, c.safety) for c in workers] == [("workers=8", "exact")]


MICRO = "micro*accumulation={8*4,16*2,32*1}:--batch-size={} --accumulate={}"


def test_micro_batch_against_accumulation_at_the_same_global_batch_is_exact() -> None:
    changes = knob_changes(parse_knob(MICRO), TRAIN, SOCKET_JOB)
    assert [(c.name, c.safety) for c in changes] == [
        ("micro*accumulation=16*2", "exact"),
        ("micro*accumulation=32*1", "exact"),
    ]
    assert "loss" in changes[0].knob.gates


@pytest.mark.parametrize(
    ("command", "has_batch_norm", "why"),
    [
        (TRAIN, True, "batch normalisation sees the micro-batch"),
        (TRAIN, None, "batch normalisation sees the micro-batch"),
        ((*TRAIN[:4], "--batch-size=16", "--accumulate=4"), False, "the product differs from the command's"),
        (TRAIN[:4], False, "the command does not say what the product is now"),
    ],
)
def test_it_is_semantic_where_the_global_batch_or_what_layers_see_changes(
    command: tuple[str, ...], has_batch_norm: bool | None, why: str
) -> None:
    with pytest.raises(UsageError, match="is semantic") as caught:
        knob_changes(parse_knob(MICRO), command, facts(has_batch_norm=has_batch_norm))
    assert why in str(caught.value)


def test_own_changes_come_last_and_need_their_safety_allowed() -> None:
    own = knob_changes(parse_knob("batch={16}:--batch-size={}"), TRAIN, SOCKET_JOB, "semantic")
    slow = diagnosis({"exposed-communication": 0.1})
    assert candidates(slow, SOCKET_JOB, "semantic", own=own)[-1].name == "batch=16+lamb"
    assert "batch=16" not in [c.name for c in candidates(slow, SOCKET_JOB, own=own)]
    assert combine(own[:1]).arguments == (Argument(words=(("--batch-size=16",),)),)


# ---- into the command ----


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((("--batch-size=16",),), "torchrun --nproc-per-node 4 train.py --batch-size=16 --accumulate=4 -j 4"),
        ((("--batch-size", "16"),), "torchrun --nproc-per-node 4 train.py --batch-size 16 --accumulate=4 -j 4"),
        ((("--accumulate", "2"),), "torchrun --nproc-per-node 4 train.py --batch-size 8 --accumulate 2 -j 4"),
        ((("-j", "8"),), "torchrun --nproc-per-node 4 train.py --batch-size 8 --accumulate=4 -j 8"),
        ((("--new=1",), ("--flag",)), " ".join(TRAIN) + " --new=1 --flag"),
        ((("--nproc-per-node=2",),), " ".join(TRAIN) + " --nproc-per-node=2"),
    ],
)
def test_arguments_are_exchanged_in_the_scripts_part_or_added(
    words: tuple[tuple[str, ...], ...], expected: str
) -> None:
    assert " ".join(with_arguments(TRAIN, [Argument(words=words)])) == expected


def test_an_argument_given_twice_is_exchanged_twice() -> None:
    command = ("python", "-m", "pkg.train", "lr=1", "x", "lr=2")
    assert with_arguments(command, [Argument(words=(("lr=3",),))]) == ("python", "-m", "pkg.train", "lr=3", "x", "lr=3")
    assert current_values(parse_knob("lr={1,3}:lr={}"), command) == ("2",)
    assert current_values(parse_knob("m={1}:-m {}"), command) is None


def test_without_a_script_the_whole_command_is_searched() -> None:
    assert with_arguments(("./train", "-j", "4"), [Argument(words=(("-j", "8"),))]) == ("./train", "-j", "8")


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        # Behind `--` argparse takes all for positional: the knob would be without effect, or the job would not start.
        ("torchrun t.py --lr 3 -- a", (("-j", "4"),), "torchrun t.py --lr 3 -j 4 -- a"),
        ("torchrun t.py -j 1 -- -j 2", (("-j", "4"),), "torchrun t.py -j 4 -- -j 2"),
        ("python -m pkg.t --", (("-j", "4"),), "python -m pkg.t -j 4 --"),
        ("srun -- ./job -j 1", (("-j", "4"),), "srun -- ./job -j 4"),
        ("srun -- ./job", (("-j", "4"),), "srun -- ./job -j 4"),
        # A flag without a value has none in the command either.
        ("python t.py --fast --lr 3", (("--fast",), ("-j", "4")), "python t.py --fast --lr 3 -j 4"),
        ("python t.py --fast data.bin", (("--fast",),), "python t.py --fast data.bin"),
        # Nor is another option one; numbers below 0 and `-`, for a file, are.
        ("python t.py --threads --lr 3", (("--threads=4",),), "python t.py --threads=4 --lr 3"),
        ("python t.py --threads -1 -x", (("--threads=4",),), "python t.py --threads=4 -x"),
        ("python t.py --scale -.5 -x", (("--scale", "2"),), "python t.py --scale 2 -x"),
        ("python t.py --data - -x", (("--data", "f"),), "python t.py --data f -x"),
        ("python t.py -x --threads", (("--threads=4",),), "python t.py -x --threads=4"),
    ],
)
def test_an_argument_takes_no_more_words_than_its_own(
    command: str, words: tuple[tuple[str, ...], ...], expected: str
) -> None:
    assert " ".join(with_arguments(command.split(), [Argument(words=words)])) == expected


def test_an_option_that_stands_without_a_value_has_none() -> None:
    knob = parse_knob("threads={4}:--threads={}")
    assert current_values(knob, ["t.py", "--threads", "--lr", "4"]) is None
    assert current_values(knob, ["t.py", "--lr", "1", "--", "--threads", "4"]) is None
    assert current_values(knob, ["t.py", "--threads", "-1"]) == ("-1",)
