"""A training script that writes in many ways to the folder that it is started in, and prints what it then sees.

Usage: writes.py WAY. It knows nothing of Flatout; the folder has what `filled` of test_divert.py puts there.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import torch


def tell(*values: object) -> None:
    print(*values, flush=True)


def look() -> None:
    """All that a script can see of its folder."""
    for root, folders, names in sorted(os.walk(".")):
        tell(root, sorted(folders), sorted(names))
        with os.scandir(root) as entries:
            tell(sorted(entry.name for entry in entries), sorted(os.listdir(root)) == sorted(os.listdir(Path(root))))
        for name in sorted(names):
            path = Path(root, name)
            tell(name, path.exists(), path.stat().st_size, os.access(path, os.R_OK), path.is_symlink())
            if path.suffix in (".txt", ".json", ".log"):
                tell(path.read_text())


def plain() -> None:
    Path("a.txt").write_text("new")
    with open("log.log", "a") as file:
        file.write("more\n")
    with open("b.txt", "r+") as file:
        file.seek(2)
        file.write("XX")
    with open("new.txt", "w") as file:
        file.write("fresh")
    with open("new.txt", "a") as file:
        file.write(" and more")
    try:
        with open("c.txt", "x"):
            tell("no error")
    except FileExistsError as error:
        tell(error)
    descriptor = os.open("c.txt", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"by os")
    os.close(descriptor)
    os.truncate("d.txt", 3)
    Path("e.txt").touch()
    os.chmod("e.txt", 0o600)
    Path("e.txt").write_text("after a touch")
    with io.open("f.txt", "wb") as file:  # noqa: UP020
        file.write(b"bytes")
    numpy.save("array.npy", numpy.arange(5))
    numpy.savez("arrays.npz", a=numpy.ones(3))
    mapped = numpy.memmap("map.bin", dtype="uint8", mode="r+")
    mapped[1] = 9
    mapped.flush()
    tell(numpy.load("array.npy"), numpy.load("arrays.npz")["a"], numpy.fromfile("map.bin", dtype="uint8"))
    handler = logging.FileHandler("log.log")
    handler.emit(logging.LogRecord("a", 20, "b", 1, "logged", None, None))
    handler.close()
    with open(b"g.txt", "w") as file:
        file.write("named in bytes")
    with open("linked.txt", "w") as file:
        file.write("through a link")
    tell(Path("linked.txt").read_text())


def names() -> None:
    with open("a.tmp", "w") as file:
        file.write("exchanged")
    os.replace("a.tmp", "a.txt")
    os.rename("log.log", "log.log.1")
    Path("log.log").write_text("a new log")
    os.remove("b.txt")
    tell(os.path.exists("b.txt"), Path("b.txt").is_file(), os.access("b.txt", os.R_OK))
    for change in (
        lambda: Path("b.txt").read_text(),
        lambda: os.remove("b.txt"),
        lambda: os.open("b.txt", os.O_RDWR),
        lambda: os.stat("b.txt"),
        lambda: os.rmdir("old"),
        lambda: os.rename("b.txt", "z.txt"),
        lambda: shutil.rmtree("b.txt"),
    ):
        try:
            change()
            tell("no error")
        except OSError as error:
            tell(type(error).__name__, error.errno, error.filename)
    with open("b.txt", "x") as file:
        file.write("again")
    os.remove("last")
    os.symlink("a.txt", "last")
    tell(os.readlink("last"), os.path.islink("last"), Path("last").read_text())
    os.link("c.txt", "c-linked.txt")
    with open("c-linked.txt", "a") as file:
        file.write("!")
    shutil.copy("d.txt", "e.txt")
    shutil.copyfile("d.txt", "f.txt")
    shutil.copy2("d.txt", "d-copy.txt")
    shutil.move("g.txt", "moved.txt")
    os.makedirs("old/deep", exist_ok=True)
    Path("old/deep/one.txt").write_text("1")


def folders() -> None:
    shutil.rmtree("old")
    tell(os.path.exists("old"), os.path.exists("old/one.txt"), os.path.isdir("old/inner"))
    os.mkdir("old")
    tell(os.listdir("old"))
    Path("old/two.txt").write_text("2")
    shutil.copytree("older", "copied")
    os.makedirs("staged/part")
    torch.save({"a": 1}, "staged/model.pt")
    Path("staged/part/state.json").write_text("{}")
    os.rename("staged", "checkpoint-1")
    tell(torch.load("checkpoint-1/model.pt"), os.path.exists("staged"), sorted(os.listdir("checkpoint-1")))
    shutil.rmtree("older", ignore_errors=True)
    os.makedirs("staged")
    torch.save({"a": 2}, "staged/model.pt")
    Path("staged/one.txt").write_text("new")
    os.rename("staged", "older")
    tell(torch.load("older/model.pt"), Path("older/one.txt").read_text())
    os.rename("renamed", "other")
    tell(os.path.exists("renamed"), sorted(os.listdir("other")))
    os.mkdir("empty-new")
    os.rmdir("empty-new")
    os.rmdir("empty")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text("x")
    tell(os.path.exists(folder))


def safetensors() -> None:
    """Its functions by the names that libraries import."""
    from safetensors import safe_open
    from safetensors.numpy import save_file as save_arrays
    from safetensors.torch import load_file, load_model, save_file, save_model

    save_file({"w": torch.ones(3)}, "model.safetensors", metadata={"format": "pt"})
    os.makedirs("checkpoint-2")
    save_file({"w": torch.ones(4)}, Path("checkpoint-2/model.safetensors"))
    Path("checkpoint-2/config.json").write_text("{}")
    save_arrays({"w": numpy.ones(5)}, "arrays.safetensors")
    linear = torch.nn.Linear(2, 2)
    save_model(linear, "linear.safetensors")
    load_model(torch.nn.Linear(2, 2), "linear.safetensors")
    tell(load_file("model.safetensors"), load_file("checkpoint-2/model.safetensors"))
    with safe_open("arrays.safetensors", framework="np") as file:
        tell(list(file.keys()), file.get_tensor("w"))
    tell(sorted(os.listdir("checkpoint-2")), [path.name for path in Path(".").glob("checkpoint-*")])
    try:
        save_file({}, "no/such/folder.safetensors")
    except Exception as error:  # noqa: BLE001
        tell(type(error).__name__)


def last() -> None:
    """A scripted module, a checkpoint that goes again, and a link to the last one."""
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "scripted.pt")
    tell(torch.jit.load("scripted.pt")(torch.zeros(1, 2)).shape)
    torch.save([1], "d.npy")
    tell(torch.load("d.npy"), os.path.getsize("d.npy") > 100)
    os.remove("d.npy")
    tell(os.path.exists("d.npy"))
    torch.save([2], "scripted.pt")
    os.symlink("scripted.pt", "latest.pt")
    tell(torch.load("latest.pt"), os.path.getsize("latest.pt") == os.path.getsize("scripted.pt"))


def links() -> None:
    """Folders by several names: a link of the user's, and links to the newest run."""
    torch.save({"a": 1}, "out/model.pt")
    tell(torch.load(Path("out").resolve() / "model.pt"), sorted(os.listdir("older")), sorted(os.listdir("out")))
    Path("out/one.txt").write_text("new")
    tell(Path("older/one.txt").read_text())
    os.chdir("out")
    tell(os.path.exists("model.pt"))
    os.chdir("..")
    os.makedirs("run")
    torch.save({"a": 2}, "run/model.pt")
    Path("run/config.json").write_text("{}")
    os.remove("newest")
    os.symlink("run", "newest")
    tell(torch.load("newest/model.pt"), Path("newest/config.json").read_text(), os.path.exists("newest/one.txt"))
    Path("newest/more.json").write_text("more")
    os.rename("newest/more.json", "newest/moved.json")
    os.mkdir("newest/inner")
    tell(sorted(os.listdir("run")), sorted(os.listdir("newest")), [entry.path for entry in os.scandir("out")])
    os.remove("newest/moved.json")
    os.remove("last")
    os.symlink("c.txt", "last")
    tell(Path("last").read_text())


def failing() -> None:
    """What does not work leaves all as it was; what goes is gone."""
    for change in (
        lambda: os.replace("nothing", "a.txt"),
        lambda: os.rename("nothing", "b.txt"),
        lambda: torch.save(1, "old"),
    ):
        try:
            change()
            tell("no error")
        except (OSError, RuntimeError) as error:
            tell(type(error).__name__)
    tell(Path("a.txt").read_text(), Path("b.txt").read_text(), sorted(os.listdir("old")))
    os.close(os.open("made.pt", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    torch.save(3, "made.pt")
    os.rename("made.pt", "renamed.pt")
    tell(os.path.exists("made.pt"), torch.load("renamed.pt"))
    os.makedirs("deep/inner")
    torch.save(3, "deep/inner/model.pt")
    os.rename("deep", "deeper")
    os.remove("deeper/inner/model.pt")
    os.rmdir("deeper/inner")
    os.rmdir("deeper")
    tell(os.path.exists("deeper"))
    os.chmod("c.txt", 0o640)
    Path("c.txt").write_text("private")
    Path("d.sh").write_text("kept")
    tell(oct(os.stat("c.txt").st_mode), oct(os.stat("d.sh").st_mode))
    tell([pickle.loads(pickle.dumps(one)) is one for one in (open, os.remove, os.stat, shutil.rmtree, torch.save)])


WAYS = {
    "plain": plain,
    "names": names,
    "folders": folders,
    "safetensors": safetensors,
    "last": last,
    "links": links,
    "failing": failing,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
    look()
