"""The plugin is built once, by the user's compiler, and never in the place of a vendor's."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from flatout.errors import FlatoutError, OutputError, UsageError
from flatout.inside.protocol import PLUGIN_NAME
from flatout.nccl_tuner.build import MAX_PATH, built_plugin, find_compiler, source_hash
from flatout.nccl_tuner.vendor_tuners import displaced_tuner


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_it_is_built_once_and_exports_three_versions(tmp_path: Path) -> None:
    variables = environment(tmp_path)
    library = built_plugin(variables)
    assert library.name == PLUGIN_NAME.of(source_hash())
    assert library.is_relative_to(tmp_path / "cache" / "flatout")
    symbols = library.read_bytes()
    assert all(f"ncclTunerPlugin_v{version}".encode() in symbols for version in (4, 5, 6))
    # The second time, no compiler is needed.
    assert built_plugin({**variables, "CC": "/nowhere/cc", "PATH": ""}) == library
    assert [path.name for path in library.parent.iterdir()] == [library.name]


@pytest.mark.parametrize("more", [{"PATH": ""}, {"CC": "/nowhere/cc"}, {"CC": "no-such-compiler -O2"}, {"CC": '"'}])
def test_without_a_compiler_there_is_one_line(tmp_path: Path, more: dict[str, str]) -> None:
    with pytest.raises(UsageError) as error:
        built_plugin(environment(tmp_path, **more))
    assert "\n" not in str(error.value)
    assert "compiler" in f"{error.value} {error.value.hint}"
    assert not (tmp_path / "cache").exists()


def test_a_compiler_with_arguments_is_used(tmp_path: Path) -> None:
    cc = program(tmp_path / "my-cc", 'echo "$@" > "$(dirname "$0")/arguments"; exec cc "$@"')
    built_plugin(environment(tmp_path, CC=f"{cc} -fno-plt"))
    assert (tmp_path / "arguments").read_text().startswith("-fno-plt -std=c11")
    assert find_compiler(environment(tmp_path, CC=f"{cc} -fno-plt")) == (str(cc), "-fno-plt")


def test_what_the_compiler_refuses_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    cc = program(tmp_path / "cc", "echo 'x.c:1:1: note: so' >&2; echo 'x.c:1: error: no such thing' >&2; exit 1")
    with pytest.raises(FlatoutError, match=r"cannot build the tuner plugin: x\.c:1: error: no such thing"):
        built_plugin(environment(tmp_path, CC=str(cc)))
    assert list((tmp_path / "cache" / "flatout" / "nccl-tuner").iterdir()) == []


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OutputError, match="cannot be written to"):
        built_plugin(environment(tmp_path))


@pytest.mark.parametrize("is_too_long", [False, True])
def test_a_path_that_nccl_would_cut_is_refused(tmp_path: Path, is_too_long: bool) -> None:
    name = f"/flatout/nccl-tuner/{PLUGIN_NAME.of(source_hash())}"
    cache = str(tmp_path / "c")
    cache += "c" * (MAX_PATH - len(cache) - len(name) + is_too_long)
    variables = environment(tmp_path, XDG_CACHE_HOME=cache)
    if is_too_long:
        with pytest.raises(OutputError, match="at most 254 characters"):
            built_plugin(variables)
    else:
        assert len(str(built_plugin(variables))) == MAX_PATH


def test_the_source_has_no_warnings_of_clang_either(tmp_path: Path) -> None:
    from flatout.nccl_tuner.build import SOURCE

    for compiler in ("cc", "clang"):
        if subprocess.run(["which", compiler], capture_output=True, check=False).returncode == 0:
            command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-fsyntax-only", str(SOURCE)]
            assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NCCL_TUNER_PLUGIN": "ofi"}, "the tuner plugin in NCCL_TUNER_PLUGIN, ofi"),
        ({"NCCL_TUNER_PLUGIN": "/x/libnccl-tuner-other.so"}, "/x/libnccl-tuner-other.so"),
        ({"NCCL_NET_PLUGIN": "aws-ofi"}, "NCCL_NET_PLUGIN, aws-ofi"),
        ({"FI_PROVIDER": "efa"}, "FI_PROVIDER is efa"),
    ],
)
def test_a_vendors_tuner_is_found_in_the_environment(variables: dict[str, str], words: str) -> None:
    found = displaced_tuner(variables, folders=())
    assert found is not None
    assert words in found


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"NCCL_TUNER_PLUGIN": "none"},
        {"NCCL_TUNER_PLUGIN": "/c/libnccl-tuner-flatout-0123.so"},
        {"FI_PROVIDER": "tcp"},
        {"NCCL_NET_PLUGIN": "none"},
    ],
)
def test_nothing_is_displaced_where_there_is_none(variables: dict[str, str]) -> None:
    assert displaced_tuner(variables, folders=()) is None


@pytest.mark.parametrize("name", ["libnccl-tuner.so", "libnccl-ofi-tuner.so", "libnccl-net-ofi.so"])
def test_a_vendors_tuner_is_found_by_its_library(tmp_path: Path, name: str) -> None:
    (tmp_path / "libc.so").touch()
    for places in ({"variables": {"LD_LIBRARY_PATH": f"/none:{tmp_path}"}}, {"folders": (str(tmp_path),)}):
        variables, folders = places.get("variables", {}), places.get("folders", ())
        assert displaced_tuner(variables, folders=folders) is None  # type: ignore[arg-type]
    (tmp_path / name).touch()
    for places in ({"variables": {"LD_LIBRARY_PATH": f"/none:{tmp_path}"}}, {"folders": (str(tmp_path),)}):
        variables, folders = places.get("variables", {}), places.get("folders", ())
        found = displaced_tuner(variables, folders=folders)  # type: ignore[arg-type]
        assert found is not None
        assert str(tmp_path) in found
