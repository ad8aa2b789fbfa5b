"""The kinds of kernel log lines that report a fault, as regular expressions: kind -> its lines."""

from __future__ import annotations

import re

PATTERNS: dict[str, re.Pattern[str]] = {
    "aer_fatal": re.compile(r"(?:AER: .*|PCIe Bus Error: severity=)Uncorrect\w+ \(Fatal\)", re.IGNORECASE),
    "aer_nonfatal": re.compile(
        r"(?:AER: .*|PCIe Bus Error: severity=)Uncorrect\w+ (?:\(Non-Fatal\)|error)", re.IGNORECASE
    ),
    "slot_down": re.compile(r"pciehp.*Slot\(.*\): (?:Link Down|Card not present)"),
    "aer_corrected": re.compile(r"AER: .*Correct(?:ed|able)|PCIe Bus Error: severity=Corrected"),
    "machine_check": re.compile(
        r"Machine Check Exception|Processor context corrupt|EDAC .* UE |Uncorrected (?:hardware memory )?error|"
        r"\[Hardware Error\]: Uncorrected|Memory failure: 0x\w+: .*(?:Killing|corrupt)"
    ),
    # `events logged` is also printed for corrected errors, so it alone is not a fault.
    "memory_corrected": re.compile(r"EDAC .* CE |Corrected error, no action required|Machine check events logged"),
    "oom": re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"),
    "hung_task": re.compile(r"INFO: task .* blocked for more than \d+ seconds"),
    "thermal": re.compile(r"(?:temperature above threshold|cpu clock throttled)"),
    "io_error": re.compile(
        r"I/O error, dev|blk_update_request: .*error|EXT4-fs error|XFS .*[Cc]orruption|"
        r"nvme\S*: (?:I/O \d+ .*timeout|queue \d+: timeout)"
    ),
    "nfs": re.compile(r"nfs: server \S+ not responding"),
    "segfault_nccl": re.compile(r"segfault at .* in libnccl"),
    "peermem": re.compile(r"nvidia[-_]peermem .*ERROR"),
    "crash": re.compile(
        r"Kernel panic - |BUG: (?:unable to handle|kernel NULL pointer)|Oops: \d|general protection fault.*\[#\d"
    ),
    # The adapter of the GPU is not usable: the driver could not start it, or its firmware (GSP) does not run.
    "gpu_init": re.compile(
        r"RmInitAdapter failed|rm_init_adapter failed|NVRM: .*(?:probe routine (?:failed|was not called)|"
        r"[Gg][Ss][Pp]\S*.*(?:[Bb]oot|[Ii]nit|RPC).*(?:[Ff]ail|[Tt]imeout)|failed to (?:copy vbios|initialize)|"
        r"None of the NVIDIA|No NVIDIA (?:GPU|devices) probed|API mismatch|is invalid|"
        r"Cannot (?:attach|initialize)|RmShutdownAdapter failed)|"
        r"nvidia: probe of \S+ failed|nvidia-nvlink: .*(?:[Ff]ailed|[Ee]rror)|"
        r"\bamdgpu\b.*(?:Fatal error during GPU init|GPU reset.* failed|ring \S+ timeout|hw_init of IP block .*failed|"
        r"SMU: .*(?:not responding|failed)|device lost from bus|uncorrectable)",
    ),
    "lockup": re.compile(r"BUG: soft lockup|hard LOCKUP|NMI watchdog: BUG", re.IGNORECASE),
    "cpu_stall": re.compile(r"rcu\S* .*(?:self-detected stall|detected (?:expedited )?stalls|kthread.*starved)"),
    "nic_health": re.compile(
        r"mlx\d_core .*(?:health compromised|Health issue observed|irisc not responding|Fatal error|internal error|"
        r"assert_var|[Cc]ommand.*timeout|will cause a leak of a command|over temperature|High temperature|"
        r"recovery (?:failed|flow)|enter_error_state|device is in fatal|failed to recover|FW (?:reset|fatal))|"
        r"mlx\d_core .*(?:mlx5_cmd|wait_func|cmd_work)\S* .*timeout|"
        r"bnxt_(?:en|re) .*(?:[Ff]irmware (?:fatal|not responding|reset)|FW (?:fatal|health|error)|fatal error|"
        r"hwrm .*timed? ?out|TX timeout detected|[Ee]rror recovery)|"
        r"(?:ice|i40e|ixgbe|irdma|igb|idpf) .*(?:[Rr]eset failed|Hardware [Ee]rror|[Ff]atal|Adapter removed|"
        r"tx hang|TX driver issue|CRIT(?:ICAL)?_ERR|PF [Rr]eset.*fail|unrecoverable|recovery mode)|"
        r"(?:ena|efa) .*(?:watchdog timeout|[Rr]eset attempt failed|admin queue .*(?:timeout|is not running)|"
        r"Device reset (?:failed|required))|"
        r"hfi1 .*(?:SPC freeze|fatal|[Ff]irmware load fail)|qede? .*(?:[Hh]ardware error|[Ff]an failure|MFW.*fail)|"
        r"NETDEV WATCHDOG: .*timed out",
    ),
    "cable": re.compile(r"Port module event\[error\]"),
    "read_only": re.compile(r"Remounting filesystem read-only"),
}
