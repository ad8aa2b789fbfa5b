"""A script that writes files in many ways: `ways_of_writing.py TEXT`. It knows nothing of Flatout.

Each way writes TEXT to four files: one in the folder that is new, one that may exist, and one in a new and in an
existing folder. Before that the script prints a digest of each file that it sees, and after that whether it sees what
it wrote.
"""

from __future__ import annotations

import bz2
import codecs
import configparser
import csv
import ctypes
import fileinput
import gzip
import importlib.util
import io
import json
import logging
import lzma
import mmap
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import torch
from digests import digests
from numpy.lib.format import open_memmap

Way = Callable[[str, str], object]
WAYS: dict[str, Way] = {}
PADDED = 64  # bytes of a file that is mapped


def way(function: Way) -> Way:
    WAYS[function.__name__.replace("_", "-")] = function
    return function


def padded(text: str) -> bytes:
    return text.encode().ljust(PADDED)


@way
def open_to_write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


@way
def open_to_append(path: str, text: str) -> None:
    with open(path, "ab") as file:
        file.write(text.encode())


@way
def open_to_update(path: str, text: str) -> None:
    with open(path, "r+" if os.path.exists(path) else "w+") as file:
        file.write(text)


@way
def io_open(path: str, text: str) -> None:
    with io.open(path, "w") as file:  # noqa: UP020
        file.write(text)


@way
def io_file_io(path: str, text: str) -> None:
    with io.FileIO(path, "w") as file:
        file.write(text.encode())
        assert isinstance(file, io.FileIO)


@way
def codecs_open(path: str, text: str) -> None:
    with codecs.open(path, "w", "utf-8") as file:
        file.write(text)


@way
def path_write_text(path: str, text: str) -> None:
    Path(path).write_text(text)


@way
def path_write_bytes(path: str, text: str) -> None:
    Path(path).write_bytes(text.encode())


@way
def os_open(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, text.encode())
    os.close(descriptor)


@way
def os_fdopen(path: str, text: str) -> None:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        file.write(text.encode())


@way
def os_truncate(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text * 2)
    os.truncate(path, len(text))


@way
def torch_save(path: str, text: str) -> None:
    torch.save(text, path)


@way
def torch_save_to_a_handle(path: str, text: str) -> None:
    with open(path, "wb") as file:
        torch.save(text, file)


@way
def torch_save_to_bytes(path: str, text: str) -> None:
    buffer = io.BytesIO()
    torch.save(text, buffer)
    with open(path, "wb") as file:
        file.write(buffer.getvalue())


@way
def torch_save_and_replace(path: str, text: str) -> None:
    with open(path + ".tmp", "wb") as file:
        torch.save(text, file)
    os.replace(path + ".tmp", path)


@way
def torch_jit_save(path: str, text: str) -> None:
    module = torch.nn.Linear(1, len(text))
    torch.jit.save(torch.jit.trace(module, torch.zeros(1, 1)), path)


@way
def torch_from_file(path: str, text: str) -> None:
    if not os.path.exists(path):
        Path(path).write_bytes(bytes(PADDED))
    mapped = torch.from_file(path, shared=True, size=PADDED, dtype=torch.uint8)
    mapped[:] = torch.tensor(list(padded(text)), dtype=torch.uint8)


@way
def safetensors_save(path: str, text: str) -> None:
    from safetensors.torch import save_file

    save_file({"text": torch.tensor(list(text.encode()))}, path)


@way
def numpy_save(path: str, text: str) -> None:
    with open(path, "wb") as file:
        numpy.save(file, numpy.array([text]))


@way
def numpy_savez(path: str, text: str) -> None:
    numpy.savez(path, text=numpy.array([text]))
    os.replace(path + ".npz", path)


@way
def numpy_savetxt(path: str, text: str) -> None:
    numpy.savetxt(path, [len(text)], header=text)


@way
def numpy_tofile(path: str, text: str) -> None:
    numpy.frombuffer(text.encode(), dtype=numpy.uint8).tofile(path)


@way
def numpy_memmap(path: str, text: str) -> None:
    mode = "r+" if os.path.exists(path) else "w+"
    mapped = numpy.memmap(path, dtype=numpy.uint8, mode=mode, shape=PADDED)  # type: ignore[call-overload]
    mapped[:] = list(padded(text))
    mapped.flush()


@way
def numpy_open_memmap(path: str, text: str) -> None:
    mapped = open_memmap(path, mode="w+", dtype=numpy.uint8, shape=(PADDED,))
    mapped[:] = list(padded(text))


@way
def mmap_module(path: str, text: str) -> None:
    if not os.path.exists(path):
        Path(path).write_bytes(bytes(PADDED))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PADDED) as mapped:
        mapped[:] = padded(text)


@way
def pickle_dump(path: str, text: str) -> None:
    with open(path, "wb") as file:
        pickle.dump(text, file)


@way
def json_dump(path: str, text: str) -> None:
    with open(path, "w") as file:
        json.dump(text, file)


@way
def csv_writer(path: str, text: str) -> None:
    with open(path, "a", newline="") as file:
        csv.writer(file).writerow([text])


@way
def configuration(path: str, text: str) -> None:
    parser = configparser.ConfigParser()
    parser["a"] = {"text": text}
    with open(path, "w") as file:
        parser.write(file)


@way
def logging_handler(path: str, text: str) -> None:
    handler = logging.FileHandler(path)
    handler.emit(logging.LogRecord("a", 20, "b", 1, text, None, None))
    handler.close()


@way
def sqlite(path: str, text: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("create table if not exists runs (text)")
        connection.execute("insert into runs values (?)", (text,))
    connection.close()


@way
def sqlite_with_a_log(path: str, text: str) -> None:
    connection = sqlite3.connect(f"file:{path}?mode=rwc", uri=True)
    connection.execute("pragma journal_mode=wal")
    with connection:
        connection.execute("create table if not exists runs (text)")
        connection.execute("insert into runs values (?)", (text,))
    connection.close()


@way
def shutil_copyfile(path: str, text: str) -> None:
    Path(path + ".source").write_text(text)
    shutil.copyfile(path + ".source", path)
    os.remove(path + ".source")


@way
def shutil_copy2(path: str, text: str) -> None:
    Path(path + ".source").write_text(text)
    shutil.copy2(path + ".source", path)
    Path(path + ".source").unlink()


@way
def shutil_move(path: str, text: str) -> None:
    Path(path + ".source").write_text(text)
    shutil.move(path + ".source", path)


@way
def os_rename(path: str, text: str) -> None:
    Path(path + ".source").write_text(text)
    os.rename(path + ".source", path)


@way
def os_link(path: str, text: str) -> None:
    Path(path + ".source").write_text(text)
    if os.path.lexists(path):
        os.remove(path)
    os.link(path + ".source", path)
    os.remove(path + ".source")


@way
def os_symlink(path: str, text: str) -> None:
    Path(f"{path}.{text}").write_text(text)
    if os.path.lexists(path):
        os.remove(path)
    os.symlink(os.path.basename(f"{path}.{text}"), path)


@way
def temporary_file_and_replace(path: str, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path) or ".", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


@way
def file_input(path: str, text: str) -> None:
    if not os.path.exists(path):
        Path(path).write_text("a line\n")
    with fileinput.input(path, inplace=True) as lines:
        for _ in lines:
            print(text)


@way
def zip_file(path: str, text: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("text", text)


@way
def tar_file(path: str, text: str) -> None:
    with tarfile.open(path, "w") as file:
        file.addfile(tarfile.TarInfo(text))


@way
def gzip_file(path: str, text: str) -> None:
    with gzip.open(path, "wt") as file:
        file.write(text)


@way
def bz2_file(path: str, text: str) -> None:
    with bz2.open(path, "wt") as file:
        file.write(text)


@way
def lzma_file(path: str, text: str) -> None:
    with lzma.open(path, "wt") as file:
        file.write(text)


@way
def remove_and_write(path: str, text: str) -> None:
    if os.path.exists(path):
        os.remove(path)
    Path(path).write_text(text)


@way
def forked_child(path: str, text: str) -> None:
    pid = os.fork()
    if not pid:
        Path(path).write_text(text)
        os._exit(0)
    os.waitpid(pid, 0)


@way
def python_child(path: str, text: str) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, path, text], check=True)


@way
def shell(path: str, text: str) -> None:
    subprocess.run(["sh", "-c", f'echo "{text}" > "{path}"'], check=True)


@way
def copying_program(path: str, text: str) -> None:
    subprocess.run(["dd", f"of={path}", "status=none"], input=text.encode(), check=True)


@way
def c_library(path: str, text: str) -> None:
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(library.fopen(path.encode(), b"w"))
    library.fputs(text.encode(), file)
    library.fclose(file)


if importlib.util.find_spec("h5py"):

    @way
    def hdf5(path: str, text: str) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            file["text"] = text


if importlib.util.find_spec("pyarrow"):

    @way
    def parquet(path: str, text: str) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": [text]}), path)

    @way
    def feather(path: str, text: str) -> None:
        import pyarrow
        import pyarrow.feather

        pyarrow.feather.write_feather(pyarrow.table({"text": [text]}), path)

    @way
    def arrow_csv(path: str, text: str) -> None:
        import pyarrow
        import pyarrow.csv

        pyarrow.csv.write_csv(pyarrow.table({"text": [text]}), path)

    @way
    def orc(path: str, text: str) -> None:
        import pyarrow
        import pyarrow.orc

        pyarrow.orc.write_table(pyarrow.table({"text": [text]}), path)

    @way
    def arrow_ipc(path: str, text: str) -> None:
        import pyarrow
        import pyarrow.ipc

        table = pyarrow.table({"text": [text]})
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)

    @way
    def arrow_stream(path: str, text: str) -> None:
        import pyarrow

        with pyarrow.output_stream(path) as stream:
            stream.write(text.encode())


def main() -> None:
    text = sys.argv[1]
    before = digests()
    print(json.dumps(before))
    if not before:
        for name, write in WAYS.items():
            os.makedirs(f"{name}-folder")
            write(f"{name}-old", text)
            write(f"{name}-folder/old", text)
        return
    for name, write in WAYS.items():
        os.makedirs(f"{name}-new-folder/inner")
        paths = [f"{name}-new", f"{name}-old", f"{name}-new-folder/inner/file", f"{name}-folder/file"]
        for path in [*paths, f"{name}-folder/old"]:
            write(path, text)
    after = digests()
    print(json.dumps(sorted(name for name, digest in after.items() if before.get(name) != digest)))


if __name__ == "__main__":
    main()
