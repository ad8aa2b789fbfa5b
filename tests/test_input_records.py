"""What is wrong with a user's TOML is said in one line: which value, the rule, what it is instead, and the way out.

The inputs are those of all TOML files that a user writes for plan, schedule and cost; each is read by its own reader.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from flatout.catalog.prices import read_prices
from flatout.errors import InputError
from flatout.input_records import FormError, converted, read_record
from flatout.plan import clusters
from flatout.read.ownership import read_ownership
from flatout.schedule.cluster import read_cluster
from flatout.schedule.live.teams import read_teams

# Words of the decoder and of Python, which say nothing to someone who wrote a TOML file.
FOREIGN = ("Expected", "Object", "`object`", "`str`", "`int`", "`float`", "`array`", "$.", "$[", "None", "True", "dict")

OWNERSHIP = "num_gpus = 64\nprice = 2_400_000\nlife_years = 5\n"
OWNERSHIP_CASES = {
    "": "`num_gpus` is missing: it must be a whole number from 1 to 10,000,000",
    "num_gpus = 64\nprice = 1": "`life_years` is missing: it must be a number",
    OWNERSHIP.replace("64", '"64"'): '`num_gpus` must be a whole number from 1 to 10,000,000, but is "64"',
    OWNERSHIP.replace("64", "0"): "`num_gpus` must be a whole number from 1 to 10,000,000, but is 0",
    OWNERSHIP.replace("64", "6.5"): "`num_gpus` must be a whole number from 1 to 10,000,000, but is 6.5",
    OWNERSHIP.replace("64", "true"): "`num_gpus` must be a whole number from 1 to 10,000,000, but is true",
    OWNERSHIP.replace("2_400_000", '"2M"'): '`price` must be a number or a table with typical, but is "2M"',
    OWNERSHIP.replace("2_400_000", "[1, 2]"): "`price` must be a number or a table with typical, but is a list of 2",
    OWNERSHIP.replace("2_400_000", "-1"): "`price` must be from 0 to 1e+13, but is -1",
    OWNERSHIP.replace("2_400_000", "{ low = 1 }"): "`price.typical` is missing: it must be a number",
    OWNERSHIP.replace("2_400_000", "{ typical = 2, hihg = 4 }"): "`hihg` in `price` is not a known name; the nearest",
    OWNERSHIP.replace("2_400_000", "{ low = 3, typical = 2 }"): "`price` must have low <= typical <= high, but has 3,",
    OWNERSHIP.replace("= 5", "= nan"): "`life_years` must be from 0.0833 to 50, but is nan",
    OWNERSHIP.replace("= 5", "= 1979-05-27"): "`life_years` must be a number, but is 1979-05-27",
    OWNERSHIP + 'currency = "euro"': '`currency` must be the three letters of a currency, such as "EUR", but is "euro"',
    OWNERSHIP + "utilisation = 70": "`utilisation` must be from 0 to 1, but is 70",
    OWNERSHIP + "utilisaton = 0.7": "`utilisaton` is not a known name; the nearest one is `utilisation`",
    OWNERSHIP + "residual_value = 3e6": "`residual_value` must be at most the price, but they are 3e+06 and 2.4e+06",
    OWNERSHIP + "gpu = 5": "`gpu` must be a text in quotes, but is 5",
    OWNERSHIP + '[rent_per_gpu_hour]\ntypical = "2"': '`rent_per_gpu_hour.typical` must be a number, but is "2"',
    OWNERSHIP + "x ==": "is not valid TOML: Invalid value (at line 4, column 4)",
}

PRICE = '[[price]]\ngpu = "h100"\nterms = "spot"\n'
PRICES_CASES = {
    "price = 5": "`price` must be a list, each item a table with typical and gpu and terms, but is 5",
    "price = [1]": "`price[1]` must be a table with typical and gpu and terms, but is 1",
    "[[price]]": "`price[1].typical` is missing: it must be a number",
    PRICE: "`price[1].typical` is missing: it must be a number",
    PRICE.replace("spot", "monthly")
    + "typical = 2": '`price[1].terms` must be one of "on-demand", "reserved", "spot",',
    PRICE.replace('"h100"', "100") + "typical = 2": "`price[1].gpu` must be a text in quotes, but is 100",
    PRICE + 'typical = "2"': '`price[1].typical` must be a number, but is "2"',
    PRICE + "typical = -2": "the price of h100 must be from 0 to 1,000, but is -2",
    PRICE + "typical = 1e9": "the price of h100 must be from 0 to 1,000, but is 1e+09",
    PRICE + "typical = 2\nlow = 3": "the price of h100 must have low <= typical <= high, but has 3, 2 and 2",
    PRICE + 'typical = 2\ncurrency = "EUR"': "`currency` in `price[1]` is not a known name; these are: typical, low,",
    'electricity = "0.1"': '`electricity` must be a number or a table with typical, but is "0.1"',
    "electricity = -1": "electricity must be from 0 to 10, but is -1",
    "electricity = { low = 1 }": "`electricity.typical` is missing: it must be a number",
    'electricity = { typical = 0.1, provenance = "guess" }': '`electricity.provenance` must be one of "assumed",',
    "electricity = nan": "electricity must have low <= typical <= high, but has nan, nan and nan",
    "electricty = 0.1": "`electricty` is not a known name; the nearest one is `electricity`",
    "pue = true": "`pue` must be a number or a table with typical, but is true",
    "pue = 0.5": "pue must be from 1 to 10, but is 0.5",
    "host = [1]": "`host` must be a number or a table with typical, but is a list of 1",
    "[[price]\n": "is not valid TOML: Expected ']]' at the end of an array declaration (at line 1, column 8)",
}

H100S = 'gpu = "h100"\nnum_gpus = 8\n'
CLUSTER_CASES = {
    "": "`gpu` is missing: it must be a text in quotes",
    'gpu = "h100"': "`num_gpus` is missing: it must be a whole number from 1 to 1,048,576",
    "gpu = 100\nnum_gpus = 8": "`gpu` must be a text in quotes, but is 100",
    "num_gpus = 8\n[gpu]\nname = 1": "`gpu` must be a text in quotes, but is a table with name",
    H100S.replace("8", '"8"'): '`num_gpus` must be a whole number from 1 to 1,048,576, but is "8"',
    H100S.replace("8", "0"): "`num_gpus` must be a whole number from 1 to 1,048,576, but is 0",
    H100S.replace("8", "-8"): "`num_gpus` must be a whole number from 1 to 1,048,576, but is -8",
    H100S.replace("8", "8.5"): "`num_gpus` must be a whole number from 1 to 1,048,576, but is 8.5",
    H100S.replace("8", "9" * 20): "`num_gpus` must be a whole number from 1 to 1,048,576, but is 9999",
    H100S.replace("h100", "h1000"): "the GPU must be in the catalogue, but got `h1000`",
    H100S + "gpus_per_node = 0": "`gpus_per_node` must be a whole number of at least 1, but is 0",
    H100S + 'nic_gbit_per_s = "400"': '`nic_gbit_per_s` must be a number above 0, but is "400"',
    H100S + 'network = "ib"': '`network` must be one of "ethernet", "infiniband", "roce", but is "ib"',
    H100S + "oversubscription = 0.5": "`oversubscription` must be a number of at least 1, but is 0.5",
    H100S + 'rail_optimized = "yes"': '`rail_optimized` must be true or false, but is "yes"',
    H100S + "nvlink_domian = 72": "`nvlink_domian` is not a known name; the nearest one is `nvlink_domain`",
    H100S + "peak_tflops = 100": "`peak_tflops` must be a table, each value a number above 0, but is 100",
    H100S + '[matmul_tflops]\nbf16 = "x"': '`matmul_tflops.bf16` must be a number above 0, but is "x"',
    H100S + "memory_gib = -1": "`memory_gib` must be a number above 0, but is -1",
    H100S + "link_gb_per_s = nan": "`link_gb_per_s` must be a number above 0, but is nan",
    "gpu = \n": "is not valid TOML: Invalid value (at line 1, column 7)",
}

NODES = "[[nodes]]\ngpus = 8\n"
NODES_CASES = {
    "": "`nodes` is missing: it must be a list, each item a table with gpus",
    "nodes = []": "`nodes` must be a list, each item a table with gpus, but is an empty list",
    "nodes = 5": "`nodes` must be a list, each item a table with gpus, but is 5",
    "nodes = [1]": "`nodes[1]` must be a table with gpus, but is 1",
    "[[nodes]]": "`nodes[1].gpus` is missing: it must be a whole number from 1 to 1,000,000",
    NODES.replace("8", '"8"'): '`nodes[1].gpus` must be a whole number from 1 to 1,000,000, but is "8"',
    NODES.replace("8", "0"): "`nodes[1].gpus` must be a whole number from 1 to 1,000,000, but is 0",
    NODES.replace("8", "true"): "`nodes[1].gpus` must be a whole number from 1 to 1,000,000, but is true",
    NODES + NODES + "count = 1e3": "`nodes[2].count` must be a whole number from 1 to 1,000,000, but is 1000.0",
    NODES + "count = 200_000": "a cluster must have at most 100,000 nodes, but has 200,000",
    NODES + "type = 5": "`nodes[1].type` must be a text in quotes, but is 5",
    NODES + 'domain = ["a"]': "`nodes[1].domain` must be a text in quotes, but is a list of 1",
    NODES + "cpu = 5": "`cpu` in `nodes[1]` is not a known name; the nearest one is `cpus`",
    NODES + "memory_gib = -1": "`nodes[1].memory_gib` must be a number of at least 0, but is -1",
    NODES + "network_gbit_per_s = nan": "`nodes[1].network_gbit_per_s` must be a number of at least 0, but is nan",
    NODES + "[types]\nH100 = 5": "`types.H100` must be a table with some of busy_w, idle_w, dollars_per_hour, but is 5",
    NODES + "[types.H100]\nbusy = 700": "`busy` in `types.H100` is not a known name; the nearest one is `busy_w`",
    NODES + '[types.H100]\nbusy_w = "x"': '`types.H100.busy_w` must be a number of at least 0, but is "x"',
    NODES + "[quotas]\nmaps = 0": "`quotas.maps` must be a whole number from 1 to 1,000,000, but is 0",
    NODES + "[quota]\nmaps = 1": "`quota` is not a known name; the nearest one is `quotas`",
    "[[nodes]\ngpus = 8": "is not valid TOML: Expected ']]'",
}

FLAVOR = '[[flavors]]\nname = "a"\nnodes = 2\ngpus_per_node = 8\ncpus_per_node = 64\nmemory_gib_per_node = 512\n'
TEAMS = '[cluster]\nname = "c"\n' + FLAVOR + '[[teams]]\nname = "t"\ngpus = { a = 8 }\n'
JOB = TEAMS + '[[jobs]]\nname = "j"\nteam = "t"\nnodes = 1\ngpus_per_node = 8\ncommand = ["torchrun"]\n'
TEAMS_CASES = {
    "": "`cluster` is missing: it must be a table with name",
    TEAMS.replace('name = "c"', ""): "`cluster.name` is missing: it must be a text in quotes",
    TEAMS.replace('"c"', "5"): "`cluster.name` must be a text in quotes, but is 5",
    TEAMS.replace("[cluster]", '[cluster]\ntopology = "rack"'): "`cluster.topology` must be a list, each item a text",
    TEAMS.replace("[cluster]", '[cluster]\nkueue_api = "v1"'): '`cluster.kueue_api` must be one of "v1beta1"',
    TEAMS.replace("nodes = 2", 'nodes = "2"'): '`flavors[1].nodes` must be a whole number, but is "2"',
    TEAMS.replace("nodes = 2", "nodes = 0"): "flavor a: nodes, GPUs, CPUs and memory must be at least 1",
    TEAMS.replace("[[teams]]", "[teams]"): "`teams` must be a list, each item a table with name and gpus, but",
    TEAMS.replace("{ a = 8 }", "8"): "`teams[1].gpus` must be a table, each value a whole number, but is 8",
    TEAMS.replace("a = 8", 'a = "8"'): '`teams[1].gpus.a` must be a whole number, but is "8"',
    TEAMS.replace("a = 8", "b = 8"): "team t: `b = 8` must be a flavor and a number of GPUs",
    TEAMS.replace("a = 8", "a = 99"): "flavor a: the teams' quotas must be at most 2 * 8 = 16 GPUs, but are 99",
    TEAMS + 'weight = "x"': '`teams[1].weight` must be a number, but is "x"',
    TEAMS + "wieght = 1": "`wieght` in `teams[1]` is not a known name; the nearest one is `weight`",
    TEAMS + "lend = { a = 9 }": "team t: `lend` of a must be at most its own 8 GPUs, but is 9",
    TEAMS + '[priorities]\nhigh = "1"': '`priorities.high` must be a whole number, but is "1"',
    JOB.replace("nodes = 1\n", ""): "`jobs[1].nodes` is missing: it must be a whole number",
    JOB.replace('["torchrun"]', '"python x"'): "`jobs[1].command` must be a list, each item a text in quotes, but is",
    JOB.replace('"torchrun"', '"torchrun", 5'): "`jobs[1].command[2]` must be a text in quotes, but is 5",
    JOB + 'kind = "pod"': '`jobs[1].kind` must be one of "jobset", "trainjob", but is "pod"',
    JOB.replace('"t"\nnodes', '"u"\nnodes'): "job j: there is no team `u`",
}

Reader = Callable[[Path], object]
READERS: dict[str, tuple[Reader, dict[str, str]]] = {
    "ownership": (read_ownership, OWNERSHIP_CASES),
    "prices": (read_prices, PRICES_CASES),
    "plan's cluster": (lambda path: clusters.cluster(str(path)), CLUSTER_CASES),
    "schedule's cluster": (read_cluster, NODES_CASES),
    "teams": (read_teams, TEAMS_CASES),
}


@pytest.mark.parametrize("name", READERS)
def test_twenty_mistakes_are_each_one_line_with_the_rule_and_the_way_out(name: str, tmp_path: Path) -> None:
    reader, cases = READERS[name]
    assert len(cases) >= 20
    path = tmp_path / "input.toml"
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            reader(path)
        said = str(caught.value)
        assert message in said, text
        assert "\n" not in said
        assert caught.value.hint, f"no way out: {said}"
        if "is not valid TOML" not in said:
            assert not [word for word in FOREIGN if word in said], said


@pytest.mark.parametrize("text", [OWNERSHIP, OWNERSHIP + 'currency = "EUR"\npue = { typical = 1.2, high = 1.4 }'])
def test_what_is_right_is_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "input.toml").write_text(text)
    assert read_ownership(tmp_path / "input.toml").num_gpus == 64


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.toml", "no such file"), (tmp_path, "it is a folder")):
        with pytest.raises(InputError, match=message):
            read_record(path, _Part, hint="write it")


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(gt=2, lt=9)]
    share: Annotated[float, msgspec.Meta(le=1.0)] = 0.0
    kind: Literal["a", "b"] = "a"
    parts: tuple[_Part, ...] = ()
    limits: dict[str, _Part | None] = {}
    word: Annotated[str, msgspec.Meta(min_length=2, max_length=3)] = "abc"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": 2}, "`size` must be a whole number above 2, but is 2"),
        ({"size": 9}, "`size` must be a whole number above 2"),
        ({"size": 3, "share": 1.01}, "`share` must be a number of at most 1.0, but is 1.01"),
        (
            {"size": 3, "parts": [{"size": 3}, {"size": "x"}]},
            '`parts[2].size` must be a whole number above 2, but is "x',
        ),
        (
            {"size": 3, "limits": {"x": {"siz": 3}}},
            "`siz` in `limits.x` is not a known name; the nearest one is",
        ),
        ({"size": 3, "limits": {"x": 4}}, "`limits.x` must be a table with size, but is 4"),
        ({"size": 3, "word": "a"}, '`word` must be a text in quotes, but is "a"'),
        ({"size": 3, "word": "x" * 50}, '`word` must be a text in quotes, but is "' + "x" * 40 + '..."'),
        ([], "the file must be a table with size, but is a list of 0"),
    ],
)
def test_the_place_of_a_value_leads_to_it(value: Any, message: str) -> None:
    with pytest.raises(FormError) as caught:
        converted(value, _Part)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", [{"size": 3}, {"size": 8, "share": 1, "word": "ab", "limits": {"x": None}}])
def test_bounds_are_those_of_the_record(value: Any) -> None:
    assert converted(value, _Part).size == value["size"]
