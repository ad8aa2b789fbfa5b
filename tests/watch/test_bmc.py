"""Sensors of a BMC: read from a mockup in DMTF's shape on the loopback, from broken ones, and from ipmitool's text."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.parse.ipmi_text import read_sdr_text
from flatout.errors import InputError, UsageError
from flatout.probe import redfish_client
from flatout.probe.redfish import read_redfish
from flatout.probe.redfish_client import PASSWORD, USER, RedfishClient, credentials
from flatout.records.bmc import BmcReading, BmcSensor
from flatout.secrets import Masker
from flatout.watch.health.bmc_signs import LEAST_PEERS, MOST_FAN_PERCENT, MOST_FROM_PEERS_C, MOST_INTAKE_C, bmc_signs

ROOT, CHASSIS = "/redfish/v1", "/redfish/v1/Chassis/1"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def members(*paths: str) -> dict[str, Any]:
    return {"Members@odata.count": len(paths), "Members": [link(path) for path in paths]}


def sensor(name: str, reading: float, kind: str = "Temperature", unit: str = "Cel", **more: Any) -> dict[str, Any]:
    status = {"State": "Enabled", "Health": "OK"}
    return {"Name": name, "ReadingType": kind, "ReadingUnits": unit, "Reading": reading, "Status": status, **more}


def mockup() -> dict[str, Any]:
    """Return the tree of a node with one resource for each sensor."""
    sensors = {
        "Inlet": sensor("Inlet Temp", 24, PhysicalContext="Intake"),
        "CPU1": sensor(
            "CPU 1 Temp", 37, Thresholds={"UpperCaution": {"Reading": 42}, "UpperCritical": {"Reading": 45}}
        ),
        "Fan1": sensor("Fan 1", 5600, "Rotational", "RPM", Thresholds={"LowerCritical": {"Reading": 900}}),
        "Gone": sensor("Slot 9", 0, Status={"State": "Absent"}),
    }
    tree: dict[str, Any] = {
        ROOT: {"RedfishVersion": "1.15.0", "Chassis": link(f"{ROOT}/Chassis")},
        f"{ROOT}/Chassis": members(CHASSIS),
        CHASSIS: {
            "Sensors": link(f"{CHASSIS}/Sensors"),
            "ThermalSubsystem": link(f"{CHASSIS}/ThermalSubsystem"),
            "PowerSubsystem": link(f"{CHASSIS}/PowerSubsystem"),
        },
        f"{CHASSIS}/Sensors": members(*(f"{CHASSIS}/Sensors/{name}" for name in sensors)),
        f"{CHASSIS}/ThermalSubsystem": {"Fans": link(f"{CHASSIS}/ThermalSubsystem/Fans")},
        f"{CHASSIS}/ThermalSubsystem/Fans": members(f"{CHASSIS}/ThermalSubsystem/Fans/2"),
        f"{CHASSIS}/ThermalSubsystem/Fans/2": {
            "Name": "Fan 2", "SpeedPercent": {"Reading": 61, "SpeedRPM": 7000}, "Status": {"Health": "OK"},
        },
        f"{CHASSIS}/PowerSubsystem": {
            "PowerSupplies": link(f"{CHASSIS}/PowerSubsystem/PowerSupplies"),
            "PowerSupplyRedundancy": [{"RedundancyType": "NPlusM", "Status": {"Health": "OK"}}],
        },
        f"{CHASSIS}/PowerSubsystem/PowerSupplies": members(f"{CHASSIS}/PowerSubsystem/PowerSupplies/1"),
        f"{CHASSIS}/PowerSubsystem/PowerSupplies/1": {"Name": "PSU 1", "Status": {"State": "Enabled", "Health": "OK"}},
    }  # fmt: skip
    return tree | {f"{CHASSIS}/Sensors/{name}": value for name, value in sensors.items()}


def old_mockup() -> dict[str, Any]:
    """Return the tree of an older node, with its sensors inside `Thermal` and `Power`."""
    return {
        ROOT: {"Chassis": link(f"{ROOT}/Chassis/")},
        f"{ROOT}/Chassis": members(f"{CHASSIS}/"),
        CHASSIS: {"Thermal": link(f"{CHASSIS}/Thermal"), "Power": link(f"{CHASSIS}/Power")},
        f"{CHASSIS}/Thermal": {
            "Temperatures": [
                {"Name": "Inlet", "ReadingCelsius": 36, "PhysicalContext": "Intake", "Status": {"Health": "OK"}},
                {"Name": "DIMM", "ReadingCelsius": 50, "UpperThresholdNonCritical": 85, "Status": {"Health": "OK"}},
                {"Name": "none", "ReadingCelsius": None, "Status": {"State": "Absent"}},
            ],
            "Fans": [{"FanName": "Fan 1", "Reading": 98, "ReadingUnits": "Percent", "Status": {"Health": "OK"}}],
        },
        f"{CHASSIS}/Power": {
            "PowerSupplies": [{"Name": "PSU 2", "Status": {"State": "Enabled", "Health": "Critical"}}],
            "Redundancy": [{"Name": "supplies", "Status": {"Health": "Warning"}}],
        },
    }


class Bmc:
    """A BMC on the loopback. `answers` has, by path, a JSON value, bytes, or a number for an HTTP error."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.delay_s = 0.0
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bmc.asked.append((self.path, self.headers.get("Authorization")))
                time.sleep(bmc.delay_s)
                answer = bmc.answers.get(self.path, 404)
                self.send_response(answer if isinstance(answer, int) else 200)
                for name, value in bmc.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if not isinstance(answer, int):
                    self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *arguments: None  # type: ignore[method-assign]
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def read(self, given: tuple[str, str] | None = ("reader", "sesame")) -> BmcReading:
        return read_redfish(RedfishClient(self.address, given))


@pytest.fixture
def bmc() -> Iterator[Bmc]:
    server = Bmc()
    yield server
    server.server.shutdown()
    server.server.server_close()


def named(reading: BmcReading) -> dict[str, BmcSensor]:
    return {each.name: each for each in reading.sensors}


def test_a_tree_of_sensors_is_read_with_limits_and_credentials(bmc: Bmc) -> None:
    bmc.answers = mockup()
    reading = bmc.read()
    assert named(reading) == {
        "Inlet Temp": BmcSensor(
            name="Inlet Temp", kind="temperature", reading=24, unit="C", health="ok", is_intake=True
        ),
        "CPU 1 Temp": BmcSensor(
            name="CPU 1 Temp", kind="temperature", reading=37, unit="C", health="ok", upper_limit=42
        ),
        "Fan 1": BmcSensor(name="Fan 1", kind="fan", reading=5600, unit="RPM", health="ok", lower_limit=900),
        "Fan 2": BmcSensor(name="Fan 2", kind="fan", reading=61, unit="%", health="ok"),
        "PSU 1": BmcSensor(name="PSU 1", kind="power_supply", health="ok"),
    }
    assert reading.is_redundant is True and reading.problems == () and bmc_signs(reading) == ()
    assert {token for _, token in bmc.asked} == {"Basic cmVhZGVyOnNlc2FtZQ=="}


def test_an_older_tree_is_read_and_its_faults_are_signs(bmc: Bmc) -> None:
    bmc.answers = old_mockup()
    kinds = [sign.kind for sign in bmc_signs(bmc.read())]
    assert kinds == ["above_limit", "fan_at_limit", "bmc_health", "power_redundancy"]


def test_half_a_tree_gives_half_of_the_sensors_and_says_what_is_missing(bmc: Bmc) -> None:
    bmc.answers = mockup()
    del bmc.answers[f"{CHASSIS}/PowerSubsystem"]
    bmc.answers[f"{CHASSIS}/Sensors/CPU1"] = b'{"Name": "CPU 1'
    bmc.answers[f"{CHASSIS}/Sensors/Inlet"] = b"[]"
    bmc.answers[f"{CHASSIS}/Sensors/Fan1"] = 500
    reading = bmc.read()
    assert set(named(reading)) == {"Fan 2"} and reading.is_redundant is None
    problems = " ".join(reading.problems)
    assert all(words in problems for words in ("HTTP 404", "not valid JSON", "not a JSON object", "HTTP 500"))


@pytest.mark.parametrize("code", [401, 403])
def test_refused_credentials_end_the_reading_at_once(bmc: Bmc, code: int) -> None:
    bmc.answers = {ROOT: code}
    with pytest.raises(InputError, match=f"refuses these credentials .HTTP {code}.") as refused:
        bmc.read()
    assert "sesame" not in str(refused.value) + refused.value.hint and len(bmc.asked) == 1


# `http.client` leaves its socket to the collector of garbage if TLS fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_that_answers_is_one_line(bmc: Bmc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redfish_client, "TIMEOUT_S", 0.1)
    bmc.answers, bmc.delay_s = mockup(), 0.4
    with pytest.raises(InputError, match=r"the BMC cannot be read: .*timed out"):
        bmc.read()
    with pytest.raises(InputError, match="the BMC cannot be read"):
        read_redfish(RedfishClient(bmc.address.replace("http", "https"), None))
    with pytest.raises(InputError, match=r"the BMC cannot be read: .*refused"):
        read_redfish(RedfishClient("http://127.0.0.1:1", None))


def test_credentials_are_sent_to_no_other_host_nor_out_of_the_tree(bmc: Bmc) -> None:
    other = Bmc()
    bmc.answers = mockup()
    bmc.answers[CHASSIS]["Sensors"] = link(f"{other.address}{ROOT}")
    bmc.answers[CHASSIS]["ThermalSubsystem"] = link("/redfish/v1/../../secrets")
    reading = bmc.read()
    assert sum("a link leaves the Redfish tree" in problem for problem in reading.problems) == 2
    bmc.answers, bmc.headers = {ROOT: 302}, {"Location": f"{other.address}{ROOT}"}
    with pytest.raises(InputError, match="HTTP 302"):
        bmc.read()
    assert other.asked == []
    other.server.shutdown()
    other.server.server_close()


def test_a_tree_without_end_and_a_huge_answer_are_bounded(bmc: Bmc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redfish_client, "MOST_REQUESTS", 8)
    monkeypatch.setattr(redfish_client, "MOST_BYTES", 20_000)
    bmc.answers = mockup()
    paths = [f"{CHASSIS}/Sensors/{number}" for number in range(50)]
    bmc.answers |= {f"{CHASSIS}/Sensors": members(*paths)} | {path: sensor(path, 1.0) for path in paths}
    bmc.answers[paths[0]] = b'{"Name": "' + b"x" * 30_000 + b'"}'
    reading = bmc.read()
    assert len(bmc.asked) == 8 and any("more than 20000 bytes" in problem for problem in reading.problems)


@pytest.mark.parametrize("address", ["http://bmc-n7", "ftp://bmc-n7", "bmc-n7", "https://root:secret@bmc-n7"])
def test_an_address_that_would_expose_the_password_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="`--redfish` must"):
        RedfishClient(address, ("root", "secret"))


def test_credentials_are_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    assert credentials(None, {USER: "a", PASSWORD: "b"}) == ("a", "b")
    assert credentials(None, {USER: "a"}) is None
    file = tmp_path / "bmc"
    file.write_text("root:with:colons\n")
    file.chmod(0o640)
    with pytest.raises(InputError, match="may be read by others"):
        credentials(file, {})
    file.chmod(0o600)
    assert credentials(file, {USER: "a", PASSWORD: "b"}) == ("root", "with:colons")
    file.write_text("only-a-user")
    with pytest.raises(InputError, match="one line `user:password`") as refused:
        credentials(file, {})
    assert "only-a-user" not in str(refused.value)
    assert "sesame-open" not in Masker({PASSWORD: "sesame-open"}, ()).text("it is sesame-open")


SDR = """\
Inlet Temp       | 04h | ok  |  7.1 | 36 degrees C
CPU1 Temp        | 01h | nc  |  3.1 | 93 degrees C
Fan1             | 30h | ok  |  7.1 | 5640 RPM
Fan Util         | 31h | ok  |  7.1 | 96 percent
PS1 Status       | 62h | ok  | 10.1 | Presence detected
PS2 Status       | 63h | ok  | 10.2 | Presence detected, Failure detected
PS Redundancy    | 77h | ok  |  7.1 | Redundancy Lost
Slot 3           | 78h | ns  |  7.1 | No Reading
"""


def test_the_text_of_ipmitool_has_the_same_signs() -> None:
    reading = read_sdr_text(SDR)
    assert set(named(reading)) == {"Inlet Temp", "CPU1 Temp", "Fan1", "Fan Util", "PS1 Status", "PS2 Status"}
    assert reading.is_redundant is False
    signs = {sign.kind: sign.reason for sign in bmc_signs(reading)}
    assert "PS2 Status as critical" in signs["bmc_health"] and "Inlet Temp is above 35 C (36 C)" in signs["above_limit"]
    assert "fan_at_limit" in signs and "power_redundancy" in signs
    assert read_sdr_text(SDR.replace("Redundancy Lost", "Fully Redundant")).is_redundant is True
    with pytest.raises(InputError, match="not that of ipmitool"):
        read_sdr_text("hello\n")


def kinds_of(*sensors: BmcSensor) -> list[str]:
    return [sign.kind for sign in bmc_signs(BmcReading(sensors=sensors))]


def temperature(name: str, reading: float, **more: Any) -> BmcSensor:
    return BmcSensor(name=name, kind="temperature", reading=reading, unit="C", health="ok", **more)


def test_each_limit_decides() -> None:
    assert kinds_of(temperature("Inlet", MOST_INTAKE_C, is_intake=True)) == []
    assert kinds_of(temperature("Inlet", MOST_INTAKE_C + 1, is_intake=True)) == ["above_limit"]
    assert kinds_of(temperature("Inlet", MOST_INTAKE_C + 1, is_intake=True, upper_limit=42)) == []
    assert kinds_of(temperature("Exhaust", 60)) == []
    for percent, found in ((MOST_FAN_PERCENT - 1, []), (MOST_FAN_PERCENT, ["fan_at_limit"])):
        assert kinds_of(BmcSensor(name="Fan", kind="fan", reading=percent, unit="%", health="ok")) == found
    stopped = BmcSensor(name="Fan", kind="fan", reading=0, unit="RPM", health="ok", lower_limit=900)
    assert kinds_of(stopped) == ["below_limit"]
    peers = [temperature(f"GPU {number} Temp", 50) for number in range(1, LEAST_PEERS)]
    assert kinds_of(*peers, temperature("GPU 9 Temp", 50 + MOST_FROM_PEERS_C)) == []
    assert kinds_of(*peers, temperature("GPU 9 Temp", 51 + MOST_FROM_PEERS_C)) == ["unlike_peers"]
    assert kinds_of(*peers[1:], temperature("GPU 9 Temp", 90)) == []
