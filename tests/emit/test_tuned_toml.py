from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.emit.tunings import VERDICT, changes, every_change, own_argument, tuning

import flatout
from flatout.change.nccl_measured import MEASURED, VARIABLES
from flatout.change.setting import setting
from flatout.change.tuner_plugin import plugin_folder
from flatout.emit import tuned_toml
from flatout.emit.write import write
from flatout.errors import InputError
from flatout.inside.protocol import PLUGIN_NAME
from flatout.records.change import Change
from flatout.records.tuning import Tuning


def written(folder: Path, made: Tuning) -> Path:
    return write(tuned_toml.emit(made), folder, force=True)


@pytest.mark.parametrize("change", every_change(), ids=lambda change: change.name)
def test_each_change_of_the_catalogue_comes_back_as_it_was(tmp_path: Path, change: Change) -> None:
    plain = msgspec.structs.replace(change, predicted_speedup=None, predicted_from=())
    found = tuned_toml.read(written(tmp_path, tuning(change)))
    assert found.change_set().changes == (plain,)


def test_a_whole_tuning_comes_back(tmp_path: Path) -> None:
    made = tuning(
        *changes("nccl-sockets=2x2+8", "ddp-bucket=200", "torchrun-numa-binding=node", "dataloader-workers=15"),
        own_argument(),
    )
    found = tuned_toml.read(written(tmp_path, made))
    assert found.command == made.command
    assert found.machine == made.machine
    assert found.versions == made.versions
    assert (found.date, found.num_trials) == (made.date, made.num_trials)
    assert found.measured is not None
    assert (found.measured.verdict, found.measured.speedup, found.measured.interval) == ("better", 3.21, (3.1, 3.33))
    assert found.measured.mean_speedup == 3.22
    assert all(stored.predicted and stored.predicted.speedup == 2.5 for stored in found.change)
    back = found.change_set()
    assert (back.environment, back.launch, back.patches) == (
        made.changes.environment,
        made.changes.launch,
        made.changes.patches,
    )
    assert back.arguments == made.changes.arguments
    assert back.changes[-1].knob == made.changes.changes[-1].knob


def test_texts_of_any_kind_survive(tmp_path: Path) -> None:
    odd = 'q"\\ \x7f\t\n[x] = é 漢 \u2028'
    made = tuning(*changes("tf32"), machine={"a b": odd, 'quote"': "x", "": "empty"}, command=("python", odd))
    text = written(tmp_path, made).read_text(encoding="utf-8")
    assert tomllib.loads(text)["machine"] == made.machine
    assert tuned_toml.read(tmp_path / "tuned.toml").command == made.command


def test_an_empty_tuning_is_a_file_too(tmp_path: Path) -> None:
    found = tuned_toml.read(written(tmp_path, tuning(verdict=None)))
    assert found.change_set().name == "baseline"
    assert found.measured is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('schema = "flatout/tuned"', 'schema = "other"', "must begin with `schema"),
        ("version = 1", "version = 2", "has version 2, but this Flatout reads version 1"),
        ("version = 1", "version = ", "is not valid TOML"),
        ("[[change]]", "[[changes]]", "unknown field `changes`"),
        ('knob = "ddp-bucket"', 'knob = "ddp-barrel"', "there is no knob `ddp-barrel`"),
        ("bucket_cap_mb = 200", "bucket_cap_mb = 99999", "does not take bucket_cap_mb = 99999"),
        ("bucket_cap_mb = 200", 'bucket_cap_mb = "200"', "does not take bucket_cap_mb = 200"),
        ("bucket_cap_mb", "bucket_cap", "has no parameter `bucket_cap`"),
        ('name = "ddp"', 'name = "os.system"', "there is no patch `os.system`"),
        ('value = "200"', 'value = "100"', "`name` must be `ddp-bucket=100`"),
        ('safety = "exact"', 'safety = "rounding"', "is exact, and not rounding"),
        ('safety = "exact"', "safety = 3", "Expected `str`"),
        ('safety = "exact"', 'safety = "exact"\nshell = "rm"', "unknown field `shell`"),
        ("NCCL_MIN_NCHANNELS", "NCCL_CHUNK_SIZE", "NCCL_CHUNK_SIZE"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    path = written(tmp_path, tuning(*changes("ddp-bucket=200", "nccl-sockets=2x2+8")))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        tuned_toml.read(path)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value).replace(str(path), "")


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        tuned_toml.read(tmp_path / "tuned.toml")
    assert not list(tmp_path.iterdir())


def test_the_head_says_what_was_measured_and_where() -> None:
    text = tuned_toml.emit(tuning(*changes("tf32"), verdict=VERDICT)).text
    assert "# Measured: better, 3.210 times as fast, 3.100 to 3.330 (6 pairs: AB BA AB BA AB BA)\n" in text
    assert "NVIDIA H200" in text.splitlines()[2]


def test_a_change_that_was_not_shown_by_itself_is_named_in_a_comment() -> None:
    made = tuning(*changes("nccl-sockets=2x2+8", "ddp-bucket=200"))
    doubtful = (made.each[0], msgspec.structs.replace(made.each[1], is_shown_alone=False))
    text = tuned_toml.emit(msgspec.structs.replace(made, each=doubtful)).text
    line = "# Measured only together with others, so the effect of each alone is unknown: ddp-bucket=200\n"
    assert line in text
    assert "Not shown" not in tuned_toml.emit(made).text


def test_less_memory_is_not_called_speed() -> None:
    made = tuning(*changes("ddp-bucket=200"))
    assert made.verdict is not None
    memory = msgspec.structs.replace(made.verdict, objective="peak_memory_bytes")
    assert "times less peak memory" in tuned_toml.emit(msgspec.structs.replace(made, verdict=memory)).text


def _measured(folder: Path, **environment: str) -> Path:
    change = setting(MEASURED, environment=environment)
    return written(folder, tuning(change))


def test_what_was_measured_of_nccl_comes_back_with_the_users_own_plugin(tmp_path: Path) -> None:
    plugin = plugin_folder() / PLUGIN_NAME.of("abc")
    table = {"FLATOUT_NCCL_TABLE": str(tmp_path / "nccl-table.txt"), "NCCL_TUNER_PLUGIN": str(plugin)}
    found = tuned_toml.read(_measured(tmp_path, NCCL_BUFFSIZE="1048576", **table))
    assert dict(found.change_set().environment) == {"NCCL_BUFFSIZE": "1048576", **table}


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("/tmp/libnccl-tuner-flatout-abc.so", "Flatout has not built this plugin for this user"),
        ("libnccl-tuner-flatout-abc.so", "Flatout has not built this plugin for this user"),
        (str(plugin_folder() / "libnccl-tuner-other.so"), "the usual tuner plugin"),
    ],
)
def test_a_file_cannot_load_a_library_of_others(tmp_path: Path, library: str, words: str) -> None:
    own = str(plugin_folder() / PLUGIN_NAME.of("abc"))
    path = _measured(tmp_path, FLATOUT_NCCL_TABLE="table.txt", NCCL_TUNER_PLUGIN=own)
    path.write_text(path.read_text().replace(own, library))
    with pytest.raises(InputError, match=words):
        tuned_toml.read(path)


def test_a_file_cannot_set_other_variables_with_what_was_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="may not set the variable LD_PRELOAD"):
        tuned_toml.read(_measured(tmp_path, LD_PRELOAD="/tmp/x.so"))


def test_the_variables_of_the_measured_change_are_those_of_the_candidates() -> None:
    candidates = tomllib.loads((Path(flatout.__file__).parent / "nccl_tuner" / "spaces.toml").read_text())
    text = str(candidates)
    used = {name for name in VARIABLES if name in text}
    names = set(re.findall(r"'(NCCL_\w+)': '", text))
    assert names <= set(VARIABLES) and used >= set(VARIABLES) - {"NCCL_TUNER_PLUGIN", "FLATOUT_NCCL_TABLE"}
