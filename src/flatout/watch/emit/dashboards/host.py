"""The dashboard of one host: its GPUs and network ports."""

from __future__ import annotations

from flatout.watch.emit.dashboards.panels import Dashboard, DashboardVariable, panel

_HOST = '{host=~"$host"}'
_GPU = "GPU {{gpu}}"
_PORT = "{{device}} {{port}}"


def _rate(metric: str) -> str:
    return f"rate({metric}{_HOST}[$__rate_interval])"


HOST = Dashboard(
    uid="flatout-host",
    title="Flatout: host",
    variables=(DashboardVariable(name="host", query="label_values(flatout_source_up, host)"),),
    rows=(
        (
            panel("GPU use", "percent", (f"DCGM_FI_DEV_GPU_UTIL{_HOST}", _GPU)),
            panel("SM clock (MHz)", "short", (f"DCGM_FI_DEV_SM_CLOCK{_HOST}", _GPU)),
        ),
        (
            panel("Power", "watt", (f"DCGM_FI_DEV_POWER_USAGE{_HOST}", _GPU)),
            panel(
                "Temperature",
                "celsius",
                (f"DCGM_FI_DEV_GPU_TEMP{_HOST}", f"{_GPU} core"),
                (f"DCGM_FI_DEV_MEMORY_TEMP{_HOST}", f"{_GPU} memory"),
            ),
            panel("GPU memory used (MiB)", "short", (f"DCGM_FI_DEV_FB_USED{_HOST}", _GPU)),
        ),
        (
            panel(
                "Slowed by heat or power",
                "percentunit",
                (f"{_rate('DCGM_FI_DEV_THERMAL_VIOLATION')} / 1e9", f"{_GPU} heat"),
                (f"{_rate('DCGM_FI_DEV_POWER_VIOLATION')} / 1e9", f"{_GPU} power"),
            ),
            panel(
                "Memory errors",
                "short",
                (f"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL{_HOST}", f"{_GPU} corrected"),
                (f"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL{_HOST}", f"{_GPU} uncorrectable"),
                (f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{_HOST}", f"{_GPU} remapped rows"),
            ),
            panel(
                "Link errors",
                "short",
                (_rate("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), f"{_GPU} PCIe replays"),
                (_rate("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"), f"{_GPU} NVLink CRC"),
            ),
        ),
        (
            panel(
                "Network",
                "Bps",
                (_rate("flatout_port_received_bytes_total"), f"{_PORT} in"),
                (_rate("flatout_port_transmitted_bytes_total"), f"{_PORT} out"),
            ),
            panel(
                "Network errors",
                "short",
                (_rate("flatout_port_receive_errors_total"), f"{_PORT} receive errors"),
                (_rate("flatout_port_transmit_drops_total"), f"{_PORT} dropped"),
                (_rate("flatout_port_retransmissions_total"), f"{_PORT} sent again"),
            ),
            panel(
                "Storage latency of reads",
                "s",
                (
                    f"{_rate('flatout_storage_read_seconds_total')} / {_rate('flatout_storage_reads_total')}",
                    "{{mount}}",
                ),
            ),
            panel("Sources", "short", (f"flatout_source_up{_HOST}", "{{source}}")),
        ),
    ),
)
