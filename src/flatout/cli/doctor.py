"""`flatout doctor`: what this machine is, and what of it slows a training job down."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.diagnose import given_path

if TYPE_CHECKING:
    from flatout.records.doctor import DoctorReport, HostsReport
    from flatout.records.snapshot import Snapshot

_FILE = "an output of `nvidia-smi topo -m`, `-q` or `nvlink -s`, of `lspci -vvv`, a topology XML of NCCL, a kernel log"


def doctor(
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BUNDLE]...", parser=given_path, help="With --hosts: of each host one."),
    ] = None,
    given: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            parser=given_path,
            help=f"Judge this instead of this machine: a bundle of --capture, {_FILE}, or a folder with a copy of "
            "/sys and /proc. May be repeated: all are one machine.",
        ),
    ] = None,
    topology: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", parser=given_path, help=f"Add what a tool has printed: {_FILE}. May be repeated."),
    ] = None,
    nccl_log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", parser=given_path, help="Add a log of NCCL_DEBUG=INFO. May be repeated."),
    ] = None,
    hosts: Annotated[bool, typer.Option("--hosts", help="Compare the hosts of the bundles with each other.")] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", parser=given_path, help="Where the training data lies: its mount.")
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=given_path, help="Write what was read into a bundle, for --from and --hosts."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the bundle if it exists.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every check in full.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Exit with 1 if a check is `fail`, or with `warn` also if it warns."),
    ] = None,
) -> None:
    """Check this machine: GPUs, software, host, network, storage. Nothing is changed, and no root is needed.

    Example: flatout doctor --capture machine.json
    """
    from flatout.errors import UsageError

    if fail_on not in (None, "fail", "warn"):
        raise UsageError(f"`--fail-on` must be `fail` or `warn`, but got {fail_on}")
    if hosts:
        if given or topology or nccl_log or capture or data:
            raise UsageError("`--hosts` goes with bundles, `--json` and `--fail-on` only")
        _several(bundles or [], json=json, fail_on=fail_on)
        return
    if bundles:
        raise UsageError("bundles go with `--hosts`", hint=f"of one machine: flatout doctor --from {bundles[0]}")
    snapshot = _snapshot(given or [], [*(topology or [])], nccl_log or [], data)
    if capture is not None:
        from flatout.doctor.given import bundle_bytes
        from flatout.report.files import write_new

        write_new(capture, bundle_bytes(snapshot), force=force)
    from flatout.doctor.judge import judged

    report = judged(snapshot)
    if json:
        _print_json("flatout/doctor", report)
    else:
        from flatout.report.doctor_text import doctor_text
        from flatout.report.terminal import style_of

        next_command = _next_command(report, capture)
        print(doctor_text(report, style=style_of(sys.stdout), show_all=show_all, next_command=next_command))
    _exit([check.status for check in report.checks], fail_on)


def _snapshot(given: list[Path], topology: list[Path], nccl_logs: list[Path], data: Path | None) -> Snapshot:
    import msgspec

    from flatout.doctor.given import merged, read_given, read_log
    from flatout.doctor.machine import NCCL_LOG
    from flatout.doctor.secrets import without_secrets
    from flatout.errors import InputError
    from flatout.records.snapshot import Snapshot

    if data is not None and not data.is_dir():
        raise InputError(f"`--data` must be a folder, and `{data}` is none")
    if given:
        snapshot = read_given(given)
    else:
        from flatout.cli.progress import Progress
        from flatout.probe.snapshot import read_machine

        with Progress("reading this machine"):
            snapshot = read_machine(data=None if data is None else str(data))
    read_from = snapshot.read_from
    for path in nccl_logs:
        snapshot = merged(snapshot, Snapshot(outputs={NCCL_LOG: read_log(path)}))
    if topology:
        snapshot = merged(snapshot, read_given(topology))
    added = tuple(str(path) for path in (*nccl_logs, *topology))
    return without_secrets(msgspec.structs.replace(snapshot, read_from=(*read_from, *added)))


def _several(bundles: list[Path], *, json: bool, fail_on: str | None) -> None:
    from flatout.doctor.compare import compared
    from flatout.doctor.given import read_given
    from flatout.doctor.secrets import without_secrets
    from flatout.errors import UsageError

    paths = [path for bundle in bundles for path in (sorted(bundle.glob("*.json")) if bundle.is_dir() else [bundle])]
    if len(paths) < 2:
        raise UsageError(
            f"`--hosts` needs the bundles of at least 2 hosts, but got {len(paths)}",
            hint="on each host: flatout doctor --capture $(hostname).json",
        )
    report = compared([without_secrets(read_given([path])) for path in paths])
    if json:
        _print_json("flatout/doctor-hosts", report)
    else:
        from flatout.report.doctor_text import hosts_text
        from flatout.report.terminal import style_of

        print(hosts_text(report, style=style_of(sys.stdout)))
    _exit([difference.status for difference in report.differences], fail_on)


def _print_json(schema: str, report: DoctorReport | HostsReport) -> None:
    from flatout.report.json import enveloped_json

    sys.stdout.write(enveloped_json(schema, 1, ["flatout", *sys.argv[1:]], report).decode())


def _next_command(report: DoctorReport, capture: Path | None) -> str:
    import shlex

    if capture is not None:
        return f"flatout doctor --from {shlex.quote(str(capture))}"
    if report.read_from[:1] == ("this machine",):
        return "flatout doctor --capture machine.json"
    return ""


def _exit(statuses: list[str], fail_on: str | None) -> None:
    if fail_on is not None and ("fail" in statuses or (fail_on == "warn" and "warn" in statuses)):
        raise typer.Exit(1)
