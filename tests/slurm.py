"""A real Slurm on this machine: a controller and nodes that are daemons of their own, each with a host name of its own.

No root, no munge, no system files: any number of these run side by side, each in its folder and on ports of its own.
Where namespaces are allowed (root), a node has its own host name, all of them resolve, and `login_only` in the lab's
folder is empty on the nodes, as a folder is that they do not share. Needs Debian's slurmctld, slurmd and slurm-client.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import psutil
import pytest
from tests.warm.tasks import warm_tasks

NUM_NODES = 2
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_PATIENCE_S = 120.0
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
_UP = {"idle", "mixed", "allocated", "completing"}
_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=1
KillWait=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval={interval},sched_interval={interval},sched_min_interval=0,batch_sched_delay=0
DebugFlags=NO_CONF_HASH
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobRequeue=1
{more}
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


class SlurmLab:
    """Use in a `with` block. `environment` has what Slurm's commands need to find it.

    Many nodes share this machine's host name (`is_apart=False`), which is quicker. A GPU is a link to /dev/null.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_nodes: int = NUM_NODES,
        gpus_per_node: int = 0,
        is_apart: bool = True,
        settings: str = "",
        interval_s: int = 1,
    ) -> None:
        self.folder = folder
        self._gpus_per_node, self._settings, self._interval_s = gpus_per_node, settings, interval_s
        self.conf = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.conf)}
        self.login_only = folder / "login_only"
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        self.has_hostnames = is_apart and (
            subprocess.run(
                ["unshare", "--uts", "--mount", "hostname", "n1"], capture_output=True, check=False
            ).returncode
            == 0
        )
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmLab:
        for name in ("state", "login_only", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        ports = _free_ports(1 + len(self.nodes))
        gres = self._fake_gpus()
        own = "{node}" if self.has_hostnames else socket.gethostname()
        nodes = [
            f"NodeName={node} NodeHostname={own.format(node=node)} NodeAddr=127.0.0.1 Port={port} CPUs=8 Boards=1"
            f" SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000{gres} State=UNKNOWN"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        self.conf.write_text(
            _CONF.format(
                host=socket.gethostname(),
                user=pwd.getpwuid(os.getuid()).pw_name,
                folder=self.folder,
                controller_port=ports[0],
                interval=self._interval_s,
                more=self._settings + ("GresTypes=gpu\n" if gres else ""),
                nodes="\n".join(nodes),
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\nConstrainCores=no\nConstrainRAMSpace=no\n")
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost " + " ".join([*self.nodes, socket.gethostname()]) + "\n"
        )
        try:
            self._start("slurmctld", "-D", "-c", "-f", str(self.conf))
            for node in self.nodes:
                self._start(*self._apart(node), "slurmd", "-D", "-f", str(self.conf), "-N", node)
            self._wait_until_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def hostname(self, number: int) -> str:
        """What the node's processes take for their machine's name; nodes count from 1."""
        return self.nodes[number - 1] if self.has_hostnames else socket.gethostname()

    @cached_property
    def python(self) -> str:
        """A Python for what Slurm starts: its programs are forked (see `tests.warm.tasks`), not started cold."""
        return str(warm_tasks().write_python(self.folder / "bin"))

    def run_batch(self, *options: str, env: Mapping[str, str] = os.environ, timeout_s: float = 300) -> str:
        """Submit a batch job and wait until it has ended; its number.

        `sbatch --wait` looks after 2, 10, 42, 74 and 106 s.
        """
        job = self.run("sbatch", "--parsable", *options, env=env).strip()
        deadline = time.monotonic() + timeout_s
        while (seen := self.done("squeue", "-h", "-t", "all", "-o", "%T", "-j", job)).stdout.strip() not in _ENDED:
            assert "Invalid job id" not in seen.stderr, seen.stderr
            assert time.monotonic() < deadline, self.run("scontrol", "show", "job", job)
            time.sleep(0.2)
        return job

    def run(self, *command: str, check: bool = True, env: Mapping[str, str] = os.environ, timeout_s: float = 90) -> str:
        """What a command prints."""
        done = self.done(*command, env=env, timeout_s=timeout_s)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def done(
        self, *command: str, env: Mapping[str, str] = os.environ, timeout_s: float = 90
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**env, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def cancel_all(self) -> None:
        """Nothing runs, and all nodes are up."""
        self.run("scancel", "--user", pwd.getpwuid(os.getuid()).pw_name, check=False)
        for node, state in self._node_states().items():
            if state not in _UP:
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self._wait_until_idle()

    def pause(self) -> None:
        """The controller answers nothing until `resume`."""
        self._daemons[0].send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._daemons[0].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Jobs first: the end of a job whose daemon is gone would leave its steps behind."""
        if self._daemons and self._daemons[0].poll() is None:
            with suppress(subprocess.TimeoutExpired, AssertionError):
                self.cancel_all()
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()
            daemon.wait()
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error, OSError):
                if process.info["name"] == "slurmstepd" and process.environ().get("SLURM_CONF") == str(self.conf):
                    process.kill()

    def _fake_gpus(self) -> str:
        """What is said of them in a node's line; Slurm takes no plain file for a GPU, but a link to a device."""
        if not self._gpus_per_node:
            return ""
        last = self._gpus_per_node - 1
        devices = self.folder / "gpus"
        devices.mkdir()
        for number in range(self._gpus_per_node):
            (devices / f"nvidia{number}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={devices}/nvidia[0-{last}]\n")
        return f" Gres=gpu:h100:{self._gpus_per_node}"

    def _apart(self, node: str) -> tuple[str, ...]:
        if not self.has_hostnames:
            return ()
        words = (
            f"hostname {node}; mount --bind {self.folder}/hosts /etc/hosts;"
            f' mount -t tmpfs none {self.login_only}; exec "$@"'
        )
        return ("unshare", "--uts", "--mount", "sh", "-c", words, "sh")

    def _start(self, *command: str) -> None:
        with (self.folder / f"daemon-{len(self._daemons)}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],  # it ends with these tests, however they end
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _node_states(self) -> dict[str, str]:
        words = self.run("sinfo", "-hNo", "%N %T", "-p", "low", check=False).split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            ended = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            states = {} if ended else self._node_states()
            if list(states.values()) == ["idle"] * len(self.nodes):
                return
            if ended or time.monotonic() > deadline:
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
                raise RuntimeError(f"the Slurm of the tests does not start: {ended or states}\n{logs}")
            time.sleep(0.1)


LOWEST_PORT, HIGHEST_PORT = 10_000, 29_000  # below those that the kernel gives to outgoing connections


def _free_ports(number: int) -> list[int]:
    """Return ports that nothing listens on. A port of the kernel's choice might be a connection's a moment later."""
    held: list[socket.socket] = []
    try:
        while len(held) < number:
            candidate = socket.socket()
            try:
                candidate.bind(("", random.SystemRandom().randint(LOWEST_PORT, HIGHEST_PORT)))
            except OSError:
                candidate.close()
            else:
                held.append(candidate)
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def free_port() -> int:
    return _free_ports(1)[0]


@pytest.fixture(scope="session")
def slurm_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    with SlurmLab(tmp_path_factory.mktemp("slurm")) as lab:
        yield lab


@pytest.fixture
def slurm(slurm_lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """The lab with nothing in its queue, found by Slurm's commands."""
    for name, value in slurm_lab.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm_lab
    slurm_lab.cancel_all()
