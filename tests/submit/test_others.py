"""`flatout submit` where there is no Slurm: Ray's REST interface as documented, manifests, and nothing at all."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.emit.tunings import every_change, tuning

from flatout.cli import main
from flatout.emit import tuned_toml
from flatout.submit import found_schedulers

pytestmark = pytest.mark.usefixtures("warm")

WORDS = ["two  blanks", "it's", "$HOME", "$(NAME)"]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler of this machine is found, and nothing is left in the checkout."""
    (tmp_path / "bin").mkdir()
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no-ray"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def submit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["flatout", "submit", "--json", *arguments])
    ended = main()
    out, err = capfd.readouterr()
    assert ended == code, err
    return json.loads(out) if out else {"error": err}  # type: ignore[no-any-return]


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class _Dashboard(BaseHTTPRequestHandler):
    asked: list[tuple[str, dict[str, Any]]] = []  # noqa: RUF012 - one server a test, emptied by it
    refuses = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append((self.path, body))
        if type(self).refuses:
            self.send_error(400, "Bad Request", "Job with submission_id exists")
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"job_id": body["submission_id"], "submission_id": body["submission_id"]}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Dashboard]]:
    _Dashboard.asked, _Dashboard.refuses = [], False
    server = HTTPServer(("127.0.0.1", 0), _Dashboard)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", f"http://127.0.0.1:{server.server_port}")
    yield _Dashboard
    server.shutdown()
    thread.join()
    server.server_close()


def test_ray_gets_the_entrypoint_that_a_shell_reads_back(
    dashboard: type[_Dashboard], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; print(sys.argv[1:]); sys.exit(5)"
    found = submit(monkeypatch, capfd, "--gpus", "2", "--name", "mine", "--", sys.executable, "-c", script, *WORDS)
    ((path, body),) = dashboard.asked
    assert path == "/api/jobs/"
    assert (body["entrypoint_num_gpus"], body["submission_id"]) == (2, "mine")
    assert (found["scheduler"], found["job"]) == ("ray", "mine")
    assert found["next"].startswith("ray job status --address http://127.0.0.1:")
    # As Ray does with it.
    assert subprocess.run(["/bin/sh", "-c", body["entrypoint"]], check=False).returncode == 5
    assert Path(found["output"]).read_text() == f"{WORDS}\n"
    assert Path(found["exit_code_file"]).read_text() == "5\n"


def test_what_ray_has_no_setting_for_is_noted(
    dashboard: type[_Dashboard], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = submit(monkeypatch, capfd, "--time", "1h", "--deadline", "2h", "--resume", "--", "true")
    assert [note for note in found["notes"] if "no setting for" in note] == [
        f"Ray's jobs have no setting for {name}" for name in ("--time", "--deadline", "--resume")
    ]


def test_what_ray_refuses_is_one_line_and_leaves_nothing(
    dashboard: type[_Dashboard], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dashboard.refuses = True
    error = submit(monkeypatch, capfd, "--", "true", code=2)["error"]
    assert error.startswith("error: Ray rejected the job: 400 ")
    assert [path for path in Path().rglob("*") if path.is_file()] == []


def test_a_ray_that_is_gone_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    error = submit(monkeypatch, capfd, "--", "true", code=2)["error"]
    assert "Ray does not answer at http://127.0.0.1:9/api/jobs/" in error
    assert "hint: set RAY_API_SERVER_ADDRESS" in error


def test_a_manifest_for_kubernetes_is_written_and_not_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "kubectl", "echo called > /nowhere; exit 1")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    found = submit(
        monkeypatch, capfd, "--nodes", "2", "--gpus", "8", "--time", "1h", "--name", "llm", "--queue", "team-a",
        "--image", "registry/train:1", "--memory", "1Ti", "--", "torchrun", "--nproc-per-node", "8", "train.py", *WORDS,
    )  # fmt: skip
    (file,) = found["files"]
    assert found["job"] is None
    assert found["next"] == found["submitted"] == shlex.join(["kubectl", "apply", "-f", file])
    manifest = yaml.safe_load(Path(file).read_text())
    assert manifest["metadata"] == {"name": "llm", "labels": {"kueue.x-k8s.io/queue-name": "team-a"}}
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (job["parallelism"], job["activeDeadlineSeconds"]) == (2, 3600)
    (container,) = job["template"]["spec"]["containers"]
    assert container["image"] == "registry/train:1"
    assert container["resources"]["limits"] == {"memory": "1024Gi", "nvidia.com/gpu": 8}
    assert "--master-addr=llm-workers-0-0.llm" in container["command"]
    assert container["command"][-4:] == ["two  blanks", "it's", "$HOME", "$$(NAME)"]  # Kubernetes takes one $ away
    assert found["notes"] == []


def test_without_an_image_its_place_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    found = submit(monkeypatch, capfd, "--dry-run", "--to", "kubernetes", "--deadline", "3h", "--", "true")
    assert "set `image`" in found["notes"][0]
    assert "a JobSet has no setting for --deadline" in found["notes"]
    assert (found["folder"], found["files"]) == (None, [])


def test_with_no_scheduler_it_is_told_where_it_was_looked_and_how_to_run_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    error = submit(monkeypatch, capfd, "--", "python", "train.py", "a b", code=2)["error"]
    assert error.count("\n") == 2
    assert "for slurm: sbatch on the PATH" in error
    assert "for ray: RAY_API_SERVER_ADDRESS" in error
    assert "for kubernetes: kubectl on the PATH" in error
    assert "hint: to run it here and now: python train.py 'a b'" in error


def test_slurm_without_sbatch_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    error = submit(monkeypatch, capfd, "--to", "slurm", "--", "true", code=2)["error"]
    assert error.startswith("error: `--to slurm` needs sbatch, which was not found\nhint: ")
    assert [path for path in Path().rglob("*") if path.is_file()] == []


def test_commands_of_slurm_without_a_cluster_are_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sbatch", "exit 1")
    program(tmp_path, "scontrol", "echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    assert [each.is_there for each in found_schedulers(environment)] == [False, False, False]
    program(tmp_path, "scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert [each.is_there for each in found_schedulers(environment)] == [True, False, False]


def test_what_was_tuned_is_in_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    patched = next(change for change in every_change() if change.patch)
    config = tmp_path / "my tuned.toml"
    config.write_text(tuned_toml.emit(tuning(patched)).text)
    words = ["flatout", "submit", "--dry-run", "--config", str(config), "--to"]
    monkeypatch.setattr(sys, "argv", [*words, "slurm", "--", "torchrun", "train.py"])
    assert main() == 0
    said = " ".join(capfd.readouterr().out.replace("\\\n", "").split())
    assert f"flatout run --config {shlex.quote(str(config))} -- torchrun train.py" in said
    monkeypatch.setattr(sys, "argv", [*words, "kubernetes", "--", "torchrun", "train.py"])
    assert main() == 0
    assert str(config) not in capfd.readouterr().out.split("next: ")[0]  # in the image it lies elsewhere


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "pbs"], "`--to` must be one of slurm, ray, kubernetes"),
        (["--name", "Big"], "`--name` must begin with a letter"),
        (
            ["--time", "soon"],
            "`--time` must be a duration above 0s and at most 10000d, e.g. 90s, 10m or 36h, but is `soon`",
        ),
        (["--time", "90"], "`--time` must have a unit, but is `90`: write 90m for minutes or 90s for seconds"),
        (["--sbatch-options", "'"], "cannot be parsed as shell arguments"),
        (["--sbatch-options", "--array=1-3"], "cannot contain --array=1-3"),
        (["--config", "missing.toml"], "cannot be read"),
        (["--spot-trace", "x"], "`--spot-trace` needs --spot-partition"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    error = submit(monkeypatch, capfd, *arguments, "--", "true", code=2)["error"]
    assert message in error
    assert "Traceback" not in error


def spot_file(tmp_path: Path, data: list[int]) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data}))
    return str(path)


@pytest.mark.parametrize(
    ("data", "partition"),
    [([1] * 1000, "preemptible"), ([0] * 1000, "steady"), (([1] * 12 + [0] * 30) * 24, "preemptible,steady")],
)
def test_a_trace_and_a_deadline_choose_the_partition(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    data: list[int],
    partition: str,
) -> None:
    found = submit(
        monkeypatch, capfd, "--dry-run", "--to", "slurm", "--resume", "--deadline", "30h", "--work-hours", "10",
        "--spot-trace", spot_file(tmp_path, data), "--spot-partition", "preemptible", "--partition", "steady",
        "--gpu-type", "h100", "--", "true",
    )  # fmt: skip
    assert f"--partition={partition} " in found["submitted"]
    assert found["notes"][0].startswith(("spot: ", "mix: ", "on-demand: "))


def test_a_job_that_cannot_resume_is_not_sent_to_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    error = submit(
        monkeypatch, capfd, "--dry-run", "--to", "slurm", "--deadline", "30h", "--work-hours", "10",
        "--spot-trace", spot_file(tmp_path, [1] * 1000), "--spot-partition", "a", "--partition", "b",
        "--gpu-type", "h100", "--", "true", code=2,
    )["error"]  # fmt: skip
    assert "not declared to resume from its checkpoint" in error
