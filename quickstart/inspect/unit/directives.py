"""The [Service] directives that an early start accepts, grouped by how the early start treats them. The build refuses
an early start of a unit with any other directive.
"""

from __future__ import annotations

# Directives for the start itself: the type, the commands, and how the main process is found.
START = frozenset(
    {
        *("Type", "BusName", "PIDFile", "GuessMainPID", "NotifyAccess", "TimeoutStartSec", "TimeoutSec"),
        *("ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "Slice"),
        *("PermissionsStartOnly", "AppArmorProfile"),
    }
)
# These directives act at a reload, stop, crash or restart. systemd does this work, and can do it once it has adopted
# the unit.
INERT = frozenset(
    {
        *(
            "ExecReload",
            "ExecStop",
            "ExecStopPost",
            "ReloadSignal",
            "KillMode",
            "KillSignal",
            "RestartKillSignal",
        ),
        *(
            "FinalKillSignal",
            "WatchdogSignal",
            "SendSIGHUP",
            "SendSIGKILL",
            "Restart",
            "RestartMode",
            "RestartSec",
        ),
        *("RestartSteps", "RestartMaxDelaySec", "RestartPreventExitStatus", "RestartForceExitStatus"),
        *(
            "SuccessExitStatus",
            "TimeoutStopSec",
            "TimeoutAbortSec",
            "TimeoutStartFailureMode",
            "RuntimeMaxSec",
        ),
        *("TimeoutStopFailureMode", "RuntimeRandomizedExtraSec", "StartLimitInterval", "StartLimitBurst"),
        *("StartLimitAction", "FailureAction", "SuccessAction", "RebootArgument", "OOMPolicy", "ExitType"),
        *("RemainAfterExit", "NonBlocking", "RuntimeDirectoryPreserve", "RemoveIPC", "TimeoutCleanSec"),
    }
)
# Directives for the journal. The starter tells journald the first four (quickstart.inspect.unit.journal), and systemd
# the others.
JOURNAL = frozenset(
    {
        *(
            "SyslogIdentifier",
            "SyslogFacility",
            "SyslogLevel",
            "SyslogLevelPrefix",
            "LogLevelMax",
            "LogExtraFields",
        ),
        *("LogRateLimitIntervalSec", "LogRateLimitBurst", "LogFilterPatterns"),
    }
)
# Directives for the cgroup, whose values the starter writes before a process enters the cgroup
# (quickstart.inspect.unit.resources).
CGROUP = frozenset(
    {
        *("CPUWeight", "StartupCPUWeight", "CPUQuota", "CPUQuotaPeriodSec", "IOWeight", "StartupIOWeight"),
        *("AllowedCPUs", "StartupAllowedCPUs", "AllowedMemoryNodes", "StartupAllowedMemoryNodes"),
        *("MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax", "MemorySwapMax", "MemoryLimit"),
        "TasksMax",
        # The unit itself passes controllers on to groups below its own (quickstart.inspect.unit.delegation).
        "Delegate",
        # Default values that a slice sets for the groups in the slice.
        *("DefaultMemoryMin", "DefaultMemoryLow"),
    }
)
# Directives for the cgroup that are no limits. systemd uses them for accounting, or acts on them later, when it has
# adopted the cgroup. An early start does not support directives that are in neither set: limits of devices, limits
# that not every systemd knows, and those of cgroup v1.
CGROUP_LATE = frozenset(
    {
        *("CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting", "IPAccounting"),
        "BlockIOAccounting",
        *("ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMMemoryPressureLimit"),
        *("ManagedOOMPreference", "MemoryPressureWatch", "MemoryPressureThresholdSec", "CoredumpReceive"),
    }
)
# Directives that the starter repeats (quickstart.inspect.unit.settings, .mounts, .seccomp).
REPEATED = frozenset(
    {
        *(
            "User",
            "Group",
            "SupplementaryGroups",
            "UMask",
            "WorkingDirectory",
            "Environment",
            "EnvironmentFile",
        ),
        *(
            "PassEnvironment",
            "UnsetEnvironment",
            "Nice",
            "OOMScoreAdjust",
            "CPUSchedulingPolicy",
            "TimerSlackNSec",
        ),
        *("CPUSchedulingPriority", "CPUSchedulingResetOnFork", "CPUAffinity", "IOSchedulingClass"),
        *(
            "IOSchedulingPriority",
            "CapabilityBoundingSet",
            "AmbientCapabilities",
            "NoNewPrivileges",
            "SecureBits",
        ),
        *("RuntimeDirectory", "StateDirectory", "CacheDirectory", "LogsDirectory", "ConfigurationDirectory"),
        *("RuntimeDirectoryMode", "StateDirectoryMode", "CacheDirectoryMode", "LogsDirectoryMode"),
        *("ConfigurationDirectoryMode", "PrivateTmp", "ProtectSystem", "ProtectHome", "ReadWritePaths"),
        *("ReadWriteDirectories", "ReadOnlyPaths", "ReadOnlyDirectories", "InaccessiblePaths"),
        *("InaccessibleDirectories", "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "MountFlags"),
        *("PrivateMounts", "ProtectControlGroups", "KeyringMode", "StandardOutput"),
        *("StandardError", "IgnoreSIGPIPE", "WatchdogSec", "PrivateDevices", "ProtectKernelTunables"),
        *("ProtectKernelModules", "ProtectKernelLogs", "ProtectClock", "ProtectHostname", "LockPersonality"),
        *("RestrictRealtime", "RestrictSUIDSGID", "RestrictNamespaces", "RestrictAddressFamilies"),
        *(
            "MemoryDenyWriteExecute",
            "SystemCallArchitectures",
            "ProtectProc",
            "ProcSubset",
            "NoExecPaths",
            "ExecPaths",
            "PrivateUsers",
            "DevicePolicy",
            "DeviceAllow",
            "PrivateNetwork",
            "SystemCallFilter",
            "SystemCallErrorNumber",
        ),
        *(f"Limit{name}" for name in ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE")),
        *(f"Limit{name}" for name in ("MEMLOCK", "AS", "LOCKS", "SIGPENDING", "MSGQUEUE", "NICE", "RTPRIO")),
        "LimitRTTIME",
        # quickstart.inspect.unit.dynamicuser
        "DynamicUser",
    }
)
# Only the value that changes nothing is accepted. `no` stands for all spellings of a boolean's false value.
HARMLESS = {
    **dict.fromkeys(("PrivateIPC", "PrivatePIDs"), "no"),
    **dict.fromkeys(("RootDirectoryStartOnly", "RootEphemeral", "DelegateNamespaces"), "no"),
    "StandardInput": "null",
    "NUMAPolicy": "default",
    "FileDescriptorStoreMax": "0",
}
KNOWN = START | INERT | JOURNAL | CGROUP | CGROUP_LATE | REPEATED | frozenset(HARMLESS)
# For these directives, an empty assignment is no reset in systemd 252, which warns and keeps the value, as `systemd
# --test` shows. Other versions may differ.
# Directives that only matter once systemd has the unit, or that only count, are left out.
KEPT_WHEN_EMPTY = frozenset(
    {
        *("Type", "GuessMainPID", "NotifyAccess", "TimeoutStartSec", "TimeoutSec", "Slice", "OOMPolicy"),
        *("PermissionsStartOnly", "UMask", "IgnoreSIGPIPE", "WatchdogSec", "KeyringMode", "DevicePolicy"),
        *("CPUSchedulingPriority", "CPUSchedulingResetOnFork", "TimerSlackNSec", "NoNewPrivileges"),
        *("StandardInput", "StandardOutput", "StandardError", "ProtectProc", "ProcSubset", "ProtectSystem"),
        *("ProtectHome", "ProtectHostname", "ProtectClock", "ProtectKernelTunables", "ProtectKernelModules"),
        *("ProtectKernelLogs", "ProtectControlGroups", "PrivateTmp", "PrivateDevices", "PrivateMounts"),
        *("DynamicUser", "PrivateNetwork", "PrivateUsers", "LockPersonality", "MemoryDenyWriteExecute"),
        *("RestrictRealtime", "RestrictSUIDSGID", "PrivateIPC", "RootDirectoryStartOnly", "NonBlocking"),
        *("BusName", "LogLevelMax", "LogRateLimitBurst", "LogRateLimitIntervalSec", "SyslogFacility"),
        *(
            "SyslogLevel",
            "SyslogLevelPrefix",
            "FileDescriptorStoreMax",
            "RuntimeDirectoryPreserve",
            "PrivatePIDs",
        ),
        *("DefaultStandardOutput", "DefaultStandardError"),
        *(name for name in REPEATED if name.startswith("Limit") or name.endswith("DirectoryMode")),
        *(f"Default{name}" for name in REPEATED if name.startswith("Limit")),
        *("DefaultTimeoutStartSec", "DefaultOOMPolicy"),
    }
)
