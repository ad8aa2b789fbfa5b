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

_HOST_LIMIT_S = 120.0
_FILE = "an output of `nvidia-smi topo -m`, `-q` or `nvlink -s`, of `lspci -vvv`, a topology XML of NCCL, a kernel log"


def doctor(
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BUNDLE]...", parser=given_path, help="With --hosts: of each host one; or the hosts, as a,b,c."
        ),
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
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Compare hosts: those of the bundles, or those named, captured now.")
    ] = False,
    via: Annotated[
        str | None, typer.Option(metavar="WAY", help="How named hosts are reached: srun or ssh; default: as found.")
    ] = None,
    flatout: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="What Flatout is called on named hosts; default: the path that it has here."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", parser=given_path, help="Where the training data lies: its mount.")
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=given_path,
            help="Write what was read into a bundle, for --from and --hosts; - is standard output, and nothing else.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(readable=False, help="Write a self-contained HTML page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
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
            raise UsageError("`--hosts` goes with bundles, `--json`, `--html` and `--fail-on` only")
        if html is not None:
            from flatout.report.files import check_new

            check_new(html, force=force)
        _tell_hosts(_several(bundles or [], via, flatout), html, force=force, json=json, fail_on=fail_on)
        return
    if via or flatout:
        raise UsageError("`--via` and `--flatout` go with `--hosts` and names", hint="flatout doctor --hosts a,b,c")
    if bundles:
        raise UsageError("bundles go with `--hosts`", hint=f"of one machine: flatout doctor --from {bundles[0]}")
    if capture is not None and str(capture) == "-" and (html or json or show_all or fail_on):
        raise UsageError(
            "`--capture -` prints the bundle alone, so it goes with no other output", hint="--capture FILE does"
        )
    if html is not None:
        from flatout.report.files import check_new

        check_new(html, force=force)
    snapshot = _snapshot(given or [], [*(topology or [])], nccl_log or [], data)
    if capture is not None:
        from flatout.doctor.given import bundle_bytes
        from flatout.report.files import write_new

        if str(capture) == "-":
            sys.stdout.buffer.write(bundle_bytes(snapshot))
            return
        write_new(capture, bundle_bytes(snapshot), force=force)
    from flatout.doctor.judge import judged

    report = judged(snapshot)
    if html is not None:
        from flatout.report.doctor_html import doctor_html
        from flatout.report.files import write_new

        write_new(html, doctor_html(report, ["flatout", *sys.argv[1:]]), force=force)
        print(f"wrote the page: {html}", file=sys.stderr)
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
        from flatout.cli.progress import Waiting
        from flatout.probe.snapshot import read_machine

        with Waiting("reading this machine"):
            snapshot = read_machine(data=None if data is None else str(data))
    read_from = snapshot.read_from
    for path in nccl_logs:
        snapshot = merged(snapshot, Snapshot(outputs={NCCL_LOG: read_log(path)}))
    if topology:
        snapshot = merged(snapshot, read_given(topology))
    added = tuple(str(path) for path in (*nccl_logs, *topology))
    return without_secrets(msgspec.structs.replace(snapshot, read_from=(*read_from, *added)))


def _several(bundles: list[Path], via: str | None, flatout: str | None) -> HostsReport:
    import msgspec

    from flatout.doctor.compare import compared
    from flatout.doctor.secrets import without_secrets
    from flatout.errors import UsageError

    are_names = bool(bundles) and not any(bundle.exists() or bundle.suffix == ".json" for bundle in bundles)
    failed: dict[str, str] = {}
    if are_names:
        snapshots, failed = _captured(",".join(map(str, bundles)), via, flatout)
    elif via or flatout:
        raise UsageError("`--via` and `--flatout` go with names of hosts", hint="flatout doctor --hosts a,b,c")
    else:
        snapshots, failed = _of_bundles(bundles)
    report = compared([without_secrets(snapshot) for snapshot in snapshots])
    return msgspec.structs.replace(report, not_captured=failed)


def _tell_hosts(report: HostsReport, html: Path | None, *, force: bool, json: bool, fail_on: str | None) -> None:
    if html is not None:
        from flatout.report.doctor_hosts_html import hosts_html
        from flatout.report.files import write_new

        write_new(html, hosts_html(report, ["flatout", *sys.argv[1:]]), force=force)
        print(f"wrote the page: {html}", file=sys.stderr)
    if json:
        _print_json("flatout/doctor-hosts", report)
    else:
        from flatout.report.doctor_text import hosts_text
        from flatout.report.terminal import style_of

        print(hosts_text(report, style=style_of(sys.stdout)))
    statuses = [difference.status for difference in report.differences]
    _exit([*statuses, *("fail" for _ in report.not_captured)], fail_on)


def _of_bundles(bundles: list[Path]) -> tuple[list[Snapshot], dict[str, str]]:
    """Each bundle; and of those that cannot be read, why: one that was cut off does not hold the others up."""
    from flatout.doctor.given import read_given
    from flatout.errors import InputError, UsageError

    given = [path for bundle in bundles for path in (sorted(bundle.glob("*.json")) if bundle.is_dir() else [bundle])]
    paths = list({path.resolve(): path for path in given}.values())
    if len(paths) < 2:
        raise UsageError(
            f"`--hosts` needs the bundles of at least 2 hosts, but got {len(paths)}",
            hint="name the hosts: flatout doctor --hosts a,b,c; or on each: flatout doctor --capture $(hostname).json",
        )
    snapshots: list[Snapshot] = []
    failed: dict[str, str] = {}
    errors: list[InputError] = []
    for path in paths:
        try:
            snapshots.append(read_given([path]))
        except InputError as error:
            failed[str(path)] = str(error)
            errors.append(error)
    if len(snapshots) < 2:
        raise errors[0]
    return snapshots, failed


def _captured(names: str, via: str | None, flatout: str | None) -> tuple[list[Snapshot], dict[str, str]]:
    """Each host's bundle, captured there now; and of those that gave none, why."""
    import shlex

    from flatout.cli.progress import Waiting
    from flatout.doctor.given import read_bundle
    from flatout.errors import InputError, UsageError
    from flatout.launch.hosts import host_names, on_hosts, way_to

    hosts = host_names(names)
    if len(hosts) < 2:
        raise UsageError(f"`--hosts` needs at least 2 hosts, but got {names}", hint="of this one alone: flatout doctor")
    if via not in (None, "srun", "ssh"):
        raise UsageError(f"`--via` must be srun or ssh, but got {via}")
    way = way_to(hosts) if via is None else ("srun" if via == "srun" else "ssh")
    try:
        called = shlex.split(flatout) if flatout else [sys.executable, "-m", "flatout"]
    except ValueError as error:
        raise UsageError(f"`--flatout` is no command: {str(error).lower()}: {flatout}") from error
    with Waiting(f"capturing {len(hosts)} hosts through {way}"):
        printed = on_hosts(hosts, [*called, "doctor", "--capture", "-"], via=way, limit_s=_HOST_LIMIT_S)
    snapshots, failed = [], {}
    for host, one in printed.items():
        try:
            if one.data is None:
                failed[host] = one.problem
            else:
                snapshots.append(read_bundle(one.data, host))
        except InputError as error:
            failed[host] = str(error)
    if len(snapshots) < 2:
        why = "; ".join(f"{host}: {reason}" for host, reason in list(failed.items())[:3])
        raise InputError(
            f"at least 2 hosts must answer through {way}, and {len(snapshots)} did: {why}",
            hint="give --flatout COMMAND if Flatout has another path there, or --via",
        )
    return snapshots, failed


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
