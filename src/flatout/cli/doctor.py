"""`flatout doctor`: describe this machine, and find the settings and faults that slow a training job down."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.paths import path_argument, path_option
from flatout.inside.protocol import Variable

if TYPE_CHECKING:
    from flatout.records.doctor import DoctorReport, HostsReport
    from flatout.records.snapshot import Snapshot

_STANDARD_OUTPUT = Path("-")
_OUTPUTS = (
    "the output of `nvidia-smi topo -m`, `nvidia-smi -q`, `nvidia-smi nvlink -s` or `lspci -vvv`, an NCCL topology "
    "XML, or a kernel log"
)


def doctor(
    bundles: Annotated[
        list[Path] | None,
        path_argument(
            metavar="[BUNDLE]...", help="With --hosts: one bundle per host, or host names separated by commas."
        ),
    ] = None,
    given: Annotated[
        list[Path] | None,
        path_option(
            "--from",
            help=f"Check this input instead of this machine: a bundle from --capture, {_OUTPUTS}, or a folder with a "
            "copy of /sys and /proc. Repeatable; all inputs must come from one machine.",
        ),
    ] = None,
    topology: Annotated[
        list[Path] | None,
        path_option(help=f"Add {_OUTPUTS}. Repeatable."),
    ] = None,
    nccl_log: Annotated[
        list[Path] | None,
        path_option(help="Add an NCCL log (NCCL_DEBUG=INFO). Repeatable."),
    ] = None,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Compare hosts, either from bundles or by name (captured now).")
    ] = False,
    via: Annotated[
        str | None,
        typer.Option(metavar="WAY", help="How to reach named hosts: srun or ssh. [default: srun if Slurm knows them]"),
    ] = None,
    flatout: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Flatout's command on the named hosts. [default: its path on this host]"),
    ] = None,
    data: Annotated[
        Path | None,
        path_option(metavar="PATH", help="Path of the training data, to check its file system."),
    ] = None,
    recording: Annotated[
        Path | None,
        path_option(
            metavar="FOLDER",
            help="A recording or traces of the job, to show how much fixing a path or link defect would gain.",
        ),
    ] = None,
    redfish: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the machine's BMC, whose sensors are read by Redfish, e.g. https://bmc-n7. The user and "
            f"the password are in {Variable.REDFISH_USER} and {Variable.REDFISH_PASSWORD}.",
        ),
    ] = None,
    redfish_credentials: Annotated[
        Path | None, path_option(help="File with one line `user:password`, of mode 0600, instead of the variables.")
    ] = None,
    capture: Annotated[
        Path | None,
        path_option(
            help="Write everything that was read to a bundle, for --from and --hosts; - prints only the bundle."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a self-contained HTML page.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every check in full.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="fail|warn", help="Exit with code 1 if a check fails; with `warn`, also if a check warns."
        ),
    ] = None,
) -> None:
    """Check this machine: GPUs, software, host, network, storage.

    Nothing is changed, and root is not needed.

    Example: flatout doctor --capture machine.json
    """
    from flatout.report.files import check_new

    only_bundle = capture == _STANDARD_OUTPUT
    _check_status(fail_on)
    if hosts:
        _refuse_with_hosts(given, topology, nccl_log, capture, data, recording, redfish)
    else:
        _refuse_without_hosts(via, flatout, bundles)
    if only_bundle:
        _refuse_with_bundle_on_standard_output(html, json, show_all, fail_on, recording)
    if html is not None:
        check_new(html, force=force)
    from flatout.doctor_pipeline import compare_hosts, read_snapshot

    if hosts:
        report = compare_hosts(bundles or [], via=via, flatout=flatout)
        _report_hosts(report, html, force=force, json=json)
        statuses = [difference.status for difference in report.differences]
        _exit([*statuses, *("fail" for _ in report.not_captured)], fail_on)
        return
    snapshot = read_snapshot(
        given or [],
        topology=topology or [],
        nccl_logs=nccl_log or [],
        data=data,
        redfish=redfish,
        redfish_credentials=redfish_credentials,
    )
    if capture is not None:
        _write_bundle(snapshot, capture, force=force)
    if not only_bundle:
        _judge(snapshot, capture, html, recording, force=force, show_all=show_all, json=json, fail_on=fail_on)


def _check_status(fail_on: str | None) -> None:
    from flatout.errors import UsageError

    if fail_on not in (None, "fail", "warn"):
        raise UsageError(f"`--fail-on` must be `fail` or `warn`, but got {fail_on}")


def _refuse_with_hosts(*machine_options: object) -> None:
    """Raise UsageError if an option about a single machine is given."""
    from flatout.errors import UsageError

    if any(machine_options):
        raise UsageError("`--hosts` can only be combined with bundles, `--json`, `--html` and `--fail-on`")


def _refuse_without_hosts(via: str | None, flatout: str | None, bundles: Sequence[Path] | None) -> None:
    """Raise UsageError if an option that requires `--hosts` is given."""
    from flatout.errors import UsageError

    if via or flatout:
        raise UsageError("`--via` and `--flatout` require `--hosts` and host names", hint="flatout doctor --hosts a,b")
    if bundles:
        raise UsageError("bundles require `--hosts`", hint=f"for one machine: flatout doctor --from {bundles[0]}")


def _refuse_with_bundle_on_standard_output(*outputs: object) -> None:
    """Raise UsageError if another output is requested: standard output contains only the bundle."""
    from flatout.errors import UsageError

    if any(outputs):
        raise UsageError(
            "`--capture -` prints only the bundle, so it cannot be combined with other outputs", hint="--capture FILE"
        )


def _write_bundle(snapshot: Snapshot, path: Path, *, force: bool) -> None:
    from flatout.doctor.inputs import bundle_bytes
    from flatout.report.files import write_new
    from flatout.report.streams import safe_json

    if path == _STANDARD_OUTPUT:
        sys.stdout.write(safe_json(bundle_bytes(snapshot).decode()))
    else:
        write_new(path, bundle_bytes(snapshot), force=force)


def _judge(
    snapshot: Snapshot,
    capture: Path | None,
    html: Path | None,
    recording: Path | None,
    *,
    force: bool,
    show_all: bool,
    json: bool,
    fail_on: str | None,
) -> None:
    from flatout.doctor.judge import judge_machine

    job = None
    if recording is not None:
        from flatout.doctor_pipeline import job_times  # imports everything that a diagnosis needs

        job = job_times(recording)
    report = judge_machine(snapshot, job)
    if html is not None:
        from flatout.report.doctor_html import doctor_html

        _write_page(html, doctor_html(report, typed_command()), force=force)
    if json:
        print_json("flatout/doctor", report, version=2)
    else:
        from flatout.report.doctor_text import doctor_text

        next_command = _next_command(report, capture)
        print(doctor_text(report, style=text_style(), show_all=show_all, next_command=next_command))
    _exit([check.status for check in report.checks], fail_on)


def _report_hosts(report: HostsReport, html: Path | None, *, force: bool, json: bool) -> None:
    if html is not None:
        from flatout.report.doctor_hosts_html import hosts_html

        _write_page(html, hosts_html(report, typed_command()), force=force)
    if json:
        print_json("flatout/doctor-hosts", report, version=2)
    else:
        from flatout.report.doctor_text import hosts_text

        print(hosts_text(report, style=text_style()))


def _write_page(path: Path, page: str, *, force: bool) -> None:
    from flatout.report.files import write_new

    write_new(path, page, force=force)
    print(f"wrote the page: {path}", file=sys.stderr)


def _next_command(report: DoctorReport, capture: Path | None) -> str:
    if capture is not None:
        return f"flatout doctor --from {shlex.quote(str(capture))}"
    if report.read_from[:1] == ("this machine",):
        return "flatout doctor --capture machine.json"
    return ""


def _exit(statuses: Sequence[str], fail_on: str | None) -> None:
    """Exit with 1 if a status is as bad as `fail_on`."""
    bad = {"fail": {"fail"}, "warn": {"fail", "warn"}}.get(fail_on or "", set())
    if bad.intersection(statuses):
        raise typer.Exit(1)
