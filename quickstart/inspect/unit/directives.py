"""The [Service] directives that an early start accepts, grouped by how the early start treats them. A unit with any
other directive is refused.
"""

from __future__ import annotations

# What the start itself does: the type, the commands, and how the main process is told.
START = frozenset(
    {
        *("Type", "BusName", "PIDFile", "GuessMainPID", "NotifyAccess", "TimeoutStartSec", "TimeoutSec"),
        *("ExecCondition", "ExecStartPre", "ExecStart", "ExecStartPost", "Slice"),
        *("PermissionsStartOnly", "AppArmorProfile"),
    }
)
# They act at reload, stop, a crash or a restart: systemd's own work, and it has it when it has adopted the unit.
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
# Of the journal: the starter tells journald the first four (quickstart.inspect.unit.journal), systemd the others.
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
# Of the cgroup, and what the starter writes into it before a process enters it (quickstart.inspect.unit.resources).
CGROUP = frozenset(
    {
        *("CPUWeight", "StartupCPUWeight", "CPUQuota", "CPUQuotaPeriodSec", "IOWeight", "StartupIOWeight"),
        *("AllowedCPUs", "StartupAllowedCPUs", "AllowedMemoryNodes", "StartupAllowedMemoryNodes"),
        *("MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax", "MemorySwapMax", "MemoryLimit"),
        "TasksMax",
        # What the unit hands on itself (quickstart.inspect.unit.delegation).
        "Delegate",
        # Of a slice: what it lends to the groups in it.
        *("DefaultMemoryMin", "DefaultMemoryLow"),
    }
)
# Of the cgroup, too, but no limits: systemd counts by them, or acts later, when it has adopted the cgroup.
# What is in neither set cannot be had early: limits of devices, those that not every systemd knows, those of cgroup v1.
CGROUP_LATE = frozenset(
    {
        *("CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting", "IPAccounting"),
        "BlockIOAccounting",
        *("ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMMemoryPressureLimit"),
        *("ManagedOOMPreference", "MemoryPressureWatch", "MemoryPressureThresholdSec", "CoredumpReceive"),
    }
)
# What the starter repeats (quickstart.inspect.unit.settings, .mounts, .seccomp).
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
# Only the value that changes nothing is taken; `no` stands for all of a boolean's.
HARMLESS = {
    **dict.fromkeys(("PrivateIPC", "PrivatePIDs"), "no"),
    **dict.fromkeys(("RootDirectoryStartOnly", "RootEphemeral", "DelegateNamespaces"), "no"),
    "StandardInput": "null",
    "NUMAPolicy": "default",
    "FileDescriptorStoreMax": "0",
}
KNOWN = START | INERT | JOURNAL | CGROUP | CGROUP_LATE | REPEATED | frozenset(HARMLESS)
# Of these systemd 252 takes no empty assignment for a reset: it warns and keeps the value, as `systemd --test` shows.
# Other versions may differ.
KEPT_WHEN_EMPTY = frozenset(
    {
        *("Type", "GuessMainPID", "NotifyAccess", "TimeoutStartSec", "TimeoutSec", "Slice", "OOMPolicy"),
        *("PermissionsStartOnly", "UMask", "IgnoreSIGPIPE", "WatchdogSec", "KeyringMode", "DevicePolicy"),
        *("CPUSchedulingPriority", "CPUSchedulingResetOnFork", "TimerSlackNSec", "NoNewPrivileges"),
        *("StandardInput", "StandardOutput", "StandardError", "ProtectProc", "ProcSubset", "ProtectSystem"),
        *("ProtectHome", "ProtectHostname", "ProtectClock", "ProtectKernelTunables", "ProtectKernelModules"),
        *("ProtectKernelLogs", "ProtectControlGroups", "PrivateTmp", "PrivateDevices", "PrivateMounts"),
        *("DynamicUser", "PrivateNetwork", "PrivateUsers", "LockPersonality", "MemoryDenyWriteExecute"),
        *("RestrictRealtime", "RestrictSUIDSGID"),
        *(name for name in REPEATED if name.startswith("Limit") or name.endswith("DirectoryMode")),
        *(f"Default{name}" for name in REPEATED if name.startswith("Limit")),
        *("DefaultTimeoutStartSec", "DefaultOOMPolicy"),
    }
)
