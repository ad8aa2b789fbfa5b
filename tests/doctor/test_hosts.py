"""`flatout doctor --hosts a,b,c`: captured on each host through srun on a real Slurm, and through ssh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm import SlurmLab, free_port

from flatout.errors import UsageError
from flatout.launch.hosts import host_names, on_hosts, way_to

pytestmark = pytest.mark.usefixtures("warm")


def doctor(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "flatout", "doctor", *arguments],
        capture_output=True, text=True, timeout=200, check=False, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_bundle_on_standard_output_is_all_that_is_printed() -> None:
    done = doctor("--capture", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "flatout/snapshot"


def test_hosts_of_a_real_slurm_are_captured_and_compared(slurm: SlurmLab) -> None:
    done = doctor("--hosts", "--json", ",".join(slurm.nodes))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [report["host"] for report in found["hosts"]]
    if slurm.has_hostnames:
        assert names == slurm.nodes
    assert len(names) == 2
    assert found["not_captured"] == {}
    assert slurm.run("squeue", "-h").strip() == ""


def test_a_host_that_slurm_does_not_know_is_told_and_the_others_are_compared(slurm: SlurmLab) -> None:
    there = ["--hosts", "--via", "srun", "--flatout", f"{slurm.python} -m flatout"]
    done = doctor(*there, "--json", *slurm.nodes, "nowhere")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["hosts"]) == 2
    assert list(found["not_captured"]) == ["nowhere"]
    assert doctor(*there, "--fail-on", "fail", *slurm.nodes, "nowhere").returncode == 1


def test_slurm_is_taken_where_it_knows_the_hosts(slurm: SlurmLab) -> None:
    assert way_to(slurm.nodes, {}) == "srun"
    assert way_to([*slurm.nodes, "elsewhere"], {}) == "ssh"
    assert host_names("n[1-2]") == ["n1", "n2"]


# Calls itself by the host's name, as another machine would, and says something before the bundle, as a login shell may.
FAKE_SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
case $host in
  away) echo "ssh: connect to host away port 22: No route to host" >&2; exit 255 ;;
  old) echo "Welcome"; exit 0 ;;
esac
echo "Welcome to $host"
sh -c "$*" | sed "s/\\"host\\": \\"[^\\"]*\\"/\\"host\\": \\"$host\\"/"
"""


@pytest.fixture
def fake_ssh(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    return program.parent


def test_hosts_are_captured_through_ssh(fake_ssh: Path) -> None:
    done = doctor("--hosts", "--via", "ssh", "--json", "a,b", "away", "old", path=fake_ssh)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [report["host"] for report in found["hosts"]] == ["a", "b"]
    assert found["not_captured"]["away"].endswith("ssh: connect to host away port 22: No route to host")
    assert set(found["not_captured"]) == {"away", "old"}
    text = doctor("--hosts", "--via", "ssh", "a,b,away", path=fake_ssh).stdout
    assert "not captured" in text
    assert "No route to host" in " ".join(text.split())


def test_a_bundle_that_is_cut_off_is_told_and_the_others_are_compared(tmp_path: Path) -> None:
    bundle = json.loads(doctor("--capture", "-").stdout)
    files = [tmp_path / f"{name}.json" for name in ("a", "b", "c")]
    for file in files:
        bundle["snapshot"]["host"] = file.stem
        file.write_text(json.dumps(bundle))
    files[1].write_text(files[1].read_text()[:3000])
    done = doctor("--hosts", "--json", *map(str, files))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [report["host"] for report in found["hosts"]] == ["a", "c"]
    assert list(found["not_captured"]) == [str(files[1])]
    assert "its end is missing" in found["not_captured"][str(files[1])]
    assert doctor("--hosts", "--fail-on", "fail", *map(str, files)).returncode == 1
    too_few = doctor("--hosts", *map(str, files[:2]))
    assert (too_few.returncode, too_few.stdout) == (2, "")
    assert too_few.stderr.startswith(f"error: `{files[1]}` is not valid JSON")
    twice = doctor("--hosts", str(files[0]), str(files[0]))  # alike it is, and tells nothing
    assert "at least 2 hosts, but got 1" in twice.stderr


def test_a_link_to_itself_among_the_bundles_is_told(tmp_path: Path) -> None:
    bundle = json.loads(doctor("--capture", "-").stdout)
    for name in ("a", "b"):
        bundle["snapshot"]["host"] = name
        (tmp_path / f"{name}.json").write_text(json.dumps(bundle))
    (tmp_path / "loop.json").symlink_to("loop.json")
    done = doctor("--hosts", "--json", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["not_captured"]) == [str(tmp_path / "loop.json")]


def test_too_few_answers_are_one_line(fake_ssh: Path) -> None:
    done = doctor("--hosts", "--via", "ssh", "a,away", path=fake_ssh)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: at least 2 hosts must answer through ssh, and 1 did: away: ")


def test_flatout_may_be_called_otherwise_there(fake_ssh: Path) -> None:
    done = doctor("--hosts", "--via", "ssh", "--flatout", "no-such-flatout", "a,b", path=fake_ssh)
    assert done.returncode == 2
    assert "--flatout" in done.stderr


def test_a_host_that_never_answers_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    began = time.monotonic()
    found = on_hosts(["a"], ["true"], via="ssh", limit_s=0.5)
    assert found["a"].problem == "it did not answer within 0.5 s"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("a,node[08-10,12],b", ["a", "node08", "node09", "node10", "node12", "b"]),
        ("rack[1-2]-n[9-10].example.org", [f"rack{rack}-n{node}.example.org" for rack in (1, 2) for node in (9, 10)]),
        ("n[3,1,3]", ["n3", "n1"]),
    ],
)
def test_a_pattern_of_names_is_expanded_without_slurm(
    pattern: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert host_names(pattern) == names


@pytest.mark.parametrize(
    "pattern", ["n[3-1]", "n[1-", "n]", "n[a]", "n[]", "n[1-9,]", "n[0-100000]", "n[1-400][1-400]"]
)
def test_a_pattern_that_names_no_hosts_is_refused_in_one_line(pattern: str) -> None:
    with pytest.raises(UsageError) as raised:
        host_names(pattern)
    assert "\n" not in str(raised.value)


def test_the_most_hosts_of_a_pattern() -> None:
    assert len(host_names("n[1-100000]")) == 100_000


@pytest.mark.parametrize("name", ["-oProxyCommand=sh", "a;b", "a b", "$(id)", ","])
def test_what_is_no_host_reaches_no_shell(name: str) -> None:
    with pytest.raises(UsageError):
        host_names(name)
    assert doctor("--hosts", "--via", "ssh", "--", f"x,{name}").returncode == 2


@pytest.fixture
def real_sshd(tmp_path: Path) -> Iterator[Path]:
    """An OpenSSH server on loopback with a key of its own; `localhost` and `127.0.0.1` are its hosts."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert server is not None
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    # The options that a user would have in ~/.ssh/config.
    real = shutil.which("ssh")
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nexec {real} -F none -p {port} -i {tmp_path}/user -o StrictHostKeyChecking=no"
        f' -o UserKnownHostsFile={tmp_path}/known "$@"\n'
    )
    program.chmod(0o755)
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [server, "-D", "-e", "-f", str(tmp_path / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
        )  # fmt: skip
    try:
        yield program.parent
    finally:
        daemon.terminate()
        daemon.wait(10)


HAS_SSHD = shutil.which("ssh") and shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


if HAS_SSHD:  # OpenSSH is there or it is not: without it, the fake one above stands in

    def test_hosts_are_captured_through_a_real_sshd(real_sshd: Path) -> None:
        command = f"env PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} -m flatout"
        names = ("localhost", "127.0.0.1")
        done = doctor("--hosts", "--via", "ssh", "--flatout", command, "--json", *names, path=real_sshd)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["hosts"]) == 2
