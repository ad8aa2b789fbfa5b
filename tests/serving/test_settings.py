"""The server's command, the tables of engines, and which changes they offer."""

from __future__ import annotations

import json
import re
import shlex
from datetime import date
from pathlib import Path

import msgspec
import pytest

from flatout.errors import InputError, UsageError
from flatout.records.serving import CAUSES, Cause, CauseName, ServerChange
from flatout.serving.candidates import ServerMachine, candidates, lists, without_unlisted
from flatout.serving.engine import Engine, KnobRow, engine_of, known_engines, read_engine
from flatout.serving.offered import help_command
from flatout.serving.words import ServerCommand, changed, option_value, parse_command, with_option

ENGINES = known_engines()
DATA = Path(__file__).parents[1] / "data" / "serving_engines"
MACHINE = ServerMachine(num_gpus=2, cores=8.0)


def test_variables_before_the_command_belong_to_its_environment() -> None:
    command = parse_command("A=1 B='x y' vllm serve m --port 8000")
    assert command == ServerCommand(words=("vllm", "serve", "m", "--port", "8000"), environment={"A": "1", "B": "x y"})


@pytest.mark.parametrize("text", ["", "A=1", "vllm serve 'm", "vllm serve m | tee log", "cd x && vllm serve m"])
def test_a_command_that_needs_a_shell_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`--serve`"):
        parse_command(text)


@pytest.mark.parametrize(
    ("before", "option", "value", "after"),
    [
        ("s", "--n", "4", "s --n 4"),
        ("s --n 2 m", "--n", "4", "s --n 4 m"),
        ("s --n=2 m", "--n", "4", "s --n 4 m"),
        ("s --number 2", "--n", "4", "s --number 2 --n 4"),
        ("s --flag --x 1", "--flag", None, "s --flag --x 1"),
        ("s --n -1", "--n", "4", "s --n 4 -1"),
        ("s", "--n", "-1", "s --n=-1"),
    ],
)
def test_an_option_is_set_where_it_stands(before: str, option: str, value: str | None, after: str) -> None:
    assert shlex.join(with_option(before.split(), option, value)) == after


def test_an_option_is_read_in_both_forms() -> None:
    assert option_value(["s", "--n=2"], "--n") == "2"
    assert option_value(["s", "--n", "2"], "--n") == "2"
    assert option_value(["s", "--n", "--m"], "--n") == ""
    assert option_value(["s"], "--n") is None


def test_changes_are_applied_to_words_and_environment() -> None:
    command = parse_command("A=1 s --eager --n 2")
    changes = (
        ServerChange(name="x", knob="x", safety="exact", removed=("--eager",)),
        ServerChange(name="y", knob="y", safety="exact", options={"--n": "4"}),
        ServerChange(name="z", knob="z", safety="exact", environment={"B": "2"}),
    )
    assert changed(command, changes) == ServerCommand(words=("s", "--n", "4"), environment={"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("text", "name", "asks"),
    [
        ("vllm serve m --port 1", "vllm", "vllm serve --help=all"),
        ("/v/bin/vllm serve m", "vllm", "/v/bin/vllm serve --help=all"),
        ("python -m vllm.entrypoints.openai.api_server", "vllm", None),
        ("python3 -m sglang.launch_server --model m", "sglang", "python3 -m sglang.launch_server --help"),
        ("sglang serve --model-path m", "sglang", "sglang serve --help"),
        ("/v/bin/transformers serve ./m --device cpu", "transformers", "/v/bin/transformers serve --help"),
        ("tritonserver --model-repository r", "triton", "tritonserver --help"),
    ],
)
def test_an_engine_is_recognised_by_its_command(text: str, name: str, asks: str | None) -> None:
    command = parse_command(text)
    engine = engine_of(command.words, None)
    assert engine.name == name
    assert asks is None or shlex.join(help_command(engine, command)) == asks


def test_an_unknown_command_needs_a_name_or_a_table() -> None:
    with pytest.raises(UsageError, match="none of the servers that are known"):
        engine_of(("my-server",), None)
    with pytest.raises(UsageError, match="sglang, transformers, triton, vllm"):
        engine_of(("my-server",), "tgi")
    assert engine_of(("my-server",), "vllm").name == "vllm"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_knob_of_a_table_is_complete_and_every_engine_answers_the_common_causes(engine: Engine) -> None:
    names = [knob.name for knob in engine.knob]
    assert len(set(names)) == len(names)
    assert engine.date
    for knob in engine.knob:
        assert knob.source.startswith("https://"), knob.name
        assert knob.doc.endswith("."), knob.name
    answered = {cause for knob in engine.knob for cause in knob.answers}
    assert {"queueing", "under-batched", "host-bound"} <= answered
    if engine.name in ("vllm", "sglang"):
        assert answered == set(CAUSES)


def names_of(engine: Engine) -> set[str]:
    """Return the options that a table knows, also those of which the user's command may have one."""
    single = (engine.port_option, engine.repository_option, engine.metrics_port_option, engine.metrics_need)
    more = (engine.batch_option, engine.batch_of_one_without, *engine.eager_with, *engine.eager_without)
    of_knobs = {name for knob in engine.knob for name in (knob.option, *knob.unless, *knob.needs, *knob.also)}
    words = {*single, *more, *engine.no_prefix_cache_with, *of_knobs} - {None}
    return {word.partition("=")[0] for word in words if word is not None and word.startswith("--")}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_table_names_only_options_that_its_engine_has(engine: Engine) -> None:
    """The lists were read from the engines' sources or help; argparse takes a prefix that only one option has."""
    known = json.loads((DATA / "options.json").read_text())[engine.name]
    assert known["version"]
    assert date.fromisoformat(known["read"])
    unknown = set()
    for name in names_of(engine):
        completions = [option for option in known["options"] if option.startswith(name)]
        if name not in known["options"] and len(completions) != 1:
            unknown.add(name)
    assert unknown == set()
    for line in (line for knob in engine.knob for line in knob.model_config):
        field, _, rest = line.partition(" ")
        assert field in known["model_config"]
        assert set(re.findall(r"([a-z_]+):", rest)) <= set(known["instance_group"])


def test_a_knob_is_offered_only_if_the_servers_help_lists_its_option() -> None:
    engine = ENGINES["vllm"]
    offered, left_out = without_unlisted(engine, "usage: vllm serve [--max-num-seqs N] [--enforce-eager-mode]")
    assert {knob.option for knob in offered.knob} == {"--max-num-seqs"}
    assert "the server's help does not list --enforce-eager" in {knob.reason for knob in left_out}
    flags = Engine(name="e", knob=(row(is_flag=True, also=("--m",)),))
    assert without_unlisted(flags, "--n --m")[1] == ()
    assert [knob.reason for knob in without_unlisted(flags, "--n")[1]] == ["the server's help does not list --m"]
    nothing, all_out = without_unlisted(engine, None)
    assert nothing.knob == ()
    assert len(all_out) == len(engine.knob)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--compile", True),
        ("  --compile / --no-compile  ", True),
        ("[--compile]", True),
        ("--compile=MODE", True),
        ("--compile-mode", False),
        ("--no--compile", False),
        ("--compiled then --compile", True),
    ],
)
def test_an_option_is_listed_only_as_a_whole_word(text: str, expected: bool) -> None:
    assert lists(text, "--compile") is expected


def row(**fields: object) -> KnobRow:
    values = {"name": "k", "answers": ("queueing",), "safety": "exact", "doc": "", "source": "", "option": "--n"}
    return msgspec.convert({**values, **fields}, KnobRow)


def offered(knob: KnobRow, text: str = "s", cause: CauseName = "queueing", allowed: str = "exact") -> list[str]:
    engine = Engine(name="e", knob=(knob,))
    causes = [Cause(name=cause, title="", share=0.5)]
    found = candidates(engine, parse_command(text), causes, machine=MACHINE, allowed=allowed)  # type: ignore[arg-type]
    return [candidate.change.name for candidate in found]


def test_values_follow_from_the_present_one() -> None:
    knob = row(multiply=(2, 4), default=256, most=600)
    assert offered(knob) == ["n=512", "n=600"]
    assert offered(knob, "s --n 100") == ["n=200", "n=400"]
    assert offered(knob, "s --n auto") == []
    assert offered(row(multiply=(0.5,), default=1, least=1)) == []
    assert offered(row(values=(0.9, 0.95)), "s --n 0.9") == ["n=0.95"]
    assert offered(row(values=("{gpus}", "{cores}"))) == ["n=2", "n=8"]


def test_flags_are_added_or_removed_once() -> None:
    assert offered(row(is_flag=True)) == ["n"]
    assert offered(row(is_flag=True), "s --n") == []
    assert offered(row(removes=True), "s --n") == ["without-n"]
    assert offered(row(removes=True)) == []


def test_knobs_of_other_causes_classes_and_machines_are_not_offered() -> None:
    assert offered(row(is_flag=True), cause="eager-mode") == []
    assert offered(row(is_flag=True, safety="rounding")) == []
    assert offered(row(is_flag=True, safety="rounding"), allowed="semantic") == ["n"]
    assert offered(row(is_flag=True, needs_gpus=2)) == ["n"]
    assert offered(row(is_flag=True, needs_gpus=3)) == []
    assert offered(row(is_flag=True, unless=("--m",)), "s --m=1") == []


def test_the_first_value_of_each_knob_comes_before_second_values() -> None:
    knobs = (row(name="a", option="--a", values=(1, 2)), row(name="b", option="--b", values=(3, 4)))
    engine = Engine(name="e", knob=knobs)
    causes = [Cause(name="queueing", title="", share=0.5)]
    found = candidates(engine, parse_command("s"), causes, machine=MACHINE, allowed="exact")
    assert [candidate.change.name for candidate in found] == ["a=1", "b=3", "a=2", "b=4"]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ('option = "--n"', "must have `values`, `multiply`, `is_flag` or `removes`"),
        ('option = "--n"\nvalues = [4]\nalso = ["--m"]', "has `also`, and must then have `is_flag`"),
        ('option = "--n"\nvariable = "N"\nvalues = [1]', "exactly one of `option`, `variable` and `model_config`"),
        ('option = "--n"\nvalue = [1]', "the nearest one is `values`"),
        ('option = "--n"\nvalues = [1]\nanswers = ["slow"]', "one of"),
    ],
)
def test_a_wrong_table_is_refused_with_the_rule(tmp_path: Path, lines: str, what: str) -> None:
    answers = "" if "answers" in lines else 'answers = ["queueing"]'
    path = tmp_path / "mine.toml"
    path.write_text(
        f'name = "mine"\n[[knob]]\nname = "k"\nsafety = "exact"\ndoc = "D."\nsource = "s"\n{answers}\n{lines}\n'
    )
    with pytest.raises(InputError, match=what):
        read_engine(path)


def test_a_flag_comes_with_those_that_it_is_bundled_with() -> None:
    knob = row(is_flag=True, also=("--m",))
    assert offered(knob) == ["n with m"]
    assert offered(knob, "s --m") == ["n"]
    assert offered(knob, "s --n") == []
    (candidate,) = candidates(
        Engine(name="e", knob=(knob,)),
        parse_command("s"),
        [Cause(name="queueing", title="", share=0.5)],
        machine=MACHINE,
        allowed="exact",
    )
    assert changed(parse_command("s"), [candidate.change]).words == ("s", "--n", "--m")


def test_a_knob_is_not_offered_where_an_option_that_it_needs_is_missing() -> None:
    assert offered(row(values=(4,), needs=("--m",))) == []
    assert offered(row(values=(4,), needs=("--m",)), "s --m") == ["n=4"]


def test_transformers_is_batched_with_graphs_first_on_a_gpu() -> None:
    engine, command = ENGINES["transformers"], parse_command("transformers serve m")
    causes = [Cause(name="under-batched", title="", share=0.5), Cause(name="eager-mode", title="", share=None)]

    def names(num_gpus: int) -> list[str]:
        machine = ServerMachine(num_gpus=num_gpus, cores=2.0)
        return [each.change.name for each in candidates(engine, command, causes, machine=machine, allowed="exact")]

    on_gpu = ["continuous-batching with cb-use-cuda-graph", "continuous-batching", *names(0)[1:]]
    assert names(1) == on_gpu
    assert names(0)[0] == "continuous-batching"
    assert not any(name.startswith("cb-") for name in on_gpu), "these have no effect without continuous batching"
