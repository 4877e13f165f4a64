"""Synthetic units of every type and for every directive that the starter repeats: their [Service] sections by name."""

from __future__ import annotations

_SLEEP = "ExecStart=/bin/sleep infinity"
_FORK = "sleep infinity & echo $$! >/run/quickstart-parity.pid"


def _service(*lines: str, start: str = _SLEEP) -> str:
    return "\n".join(("[Service]", *lines, start)) + "\n"


TYPES = {
    "simple": _service(),
    "exec": _service("Type=exec"),
    "forking": _service(
        "Type=forking", "PIDFile=/run/quickstart-parity.pid", start=f"ExecStart=/bin/sh -c '{_FORK}'"
    ),
    "guessed": _service("Type=forking", start="ExecStart=/bin/sh -c 'sleep infinity &'"),
    "notify": _service(
        *("Type=notify", "NotifyAccess=all"),
        start="ExecStart=/bin/sh -c 'systemd-notify --ready; exec sleep infinity'",
    ),
}
PROCESS = {
    "user": _service("User=nobody", "Group=daemon", "SupplementaryGroups=audio video"),
    "user-root": _service("User=root"),
    "user-alone": _service("User=www-data"),
    "group-alone": _service("Group=www-data"),
    "dynamic-user": _service("DynamicUser=yes", "User=parity-alone"),
    "dynamic-user-directories": _service(
        *("DynamicUser=yes", "User=parity-made-up", "SupplementaryGroups=audio", "RuntimeDirectory=made-up"),
        *(
            "StateDirectory=made-up made-up-too",
            "CacheDirectory=made-up",
            "LogsDirectory=made-up",
            "PrivateTmp=yes",
        ),
    ),
    "limits": _service(
        "LimitNOFILE=32768", "LimitCORE=1G:2G", "LimitNPROC=100", "LimitMEMLOCK=524288", "LimitNICE=+5"
    ),
    "more-limits": _service(
        "LimitRTPRIO=5:9", "LimitCPU=1h", "LimitRTTIME=5s", "LimitSTACK=4M:infinity", "LimitAS=infinity"
    ),
    "scheduling": _service(
        "Nice=5", "OOMScoreAdjust=-500", "CPUSchedulingPolicy=batch", "IOSchedulingClass=idle"
    ),
    "affinity": _service("CPUAffinity=0", "UMask=0027", "TimerSlackNSec=100us", "IgnoreSIGPIPE=no"),
    "bounding": _service("CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_CHOWN", "NoNewPrivileges=yes"),
    "bounding-out": _service("CapabilityBoundingSet=~CAP_SYS_ADMIN CAP_SYS_BOOT"),
    "bounding-none": _service("User=nobody", "CapabilityBoundingSet="),
    "ambient": _service("User=nobody", "AmbientCapabilities=CAP_NET_BIND_SERVICE CAP_IPC_LOCK"),
    "ambient-root": _service("AmbientCapabilities=CAP_NET_BIND_SERVICE"),
    "secure-bits": _service("User=nobody", "SecureBits=noroot keep-caps"),
}
MOUNTS = {
    "private-tmp": _service("PrivateTmp=yes"),
    "protect-system": _service("ProtectSystem=yes"),
    "protect-system-full": _service("ProtectSystem=full"),
    "protect-system-strict": _service(
        "ProtectSystem=strict", "ReadWritePaths=/srv -/no/such", "StateDirectory=parity"
    ),
    "protect-home": _service("ProtectHome=yes"),
    "protect-home-read-only": _service("ProtectHome=read-only"),
    "protect-home-tmpfs": _service("ProtectHome=tmpfs"),
    "protect-control-groups": _service("ProtectControlGroups=yes"),
    "paths": _service(
        "ReadOnlyPaths=/srv /opt", "ReadWritePaths=/var/log", "InaccessiblePaths=/mnt -/no/such"
    ),
    "nested-paths": _service(
        "ReadOnlyPaths=/var", "ReadWritePaths=/var/log", "InaccessiblePaths=/var/lib/dpkg /etc/shadow"
    ),
    "binds": _service(
        "BindPaths=/srv:/opt", "BindReadOnlyPaths=/usr/share:/mnt /etc/hostname:/srv/name:norbind"
    ),
    "tmpfs": _service("TemporaryFileSystem=/srv /opt:ro"),
    "mount-flags": _service("MountFlags=slave"),
    "mounts-private": _service("MountFlags=private", "PrivateMounts=yes"),
    "private-mounts": _service("PrivateMounts=yes"),
    "mariadb-like": _service(
        *(
            "Type=exec",
            "User=nobody",
            "ProtectSystem=full",
            "ProtectHome=true",
            "ProtectControlGroups=true",
            "UMask=007",
        ),
        *("AmbientCapabilities=CAP_IPC_LOCK", "LimitNOFILE=32768", "LimitMEMLOCK=524288", "TasksMax=99%"),
        *("RuntimeDirectory=parity", "RuntimeDirectoryMode=2755", "WorkingDirectory=/run/parity"),
    ),
}
KERNEL = {
    "private-devices": _service("PrivateDevices=yes"),
    "kernel-tunables": _service("ProtectKernelTunables=yes"),
    "kernel-modules": _service("ProtectKernelModules=yes"),
    "kernel-logs": _service("ProtectKernelLogs=yes", "User=nobody"),
    "clock": _service("ProtectClock=yes"),
    "host-name": _service("ProtectHostname=yes"),
    "filters": _service(
        "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "RestrictNamespaces=yes", "LockPersonality=yes"
    ),
    "filters-of-a-user": _service(
        "User=nobody", "RestrictAddressFamilies=AF_UNIX", "MemoryDenyWriteExecute=yes"
    ),
    "native": _service("SystemCallArchitectures=native", "RestrictNamespaces=~user"),
    "memcached-like": _service(
        *("PrivateTmp=true", "ProtectSystem=full", "NoNewPrivileges=true", "PrivateDevices=true"),
        "CapabilityBoundingSet=CAP_SETGID CAP_SETUID CAP_SYS_RESOURCE",
        *(
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
            "MemoryDenyWriteExecute=true",
            "RestrictRealtime=true",
        ),
        *("ProtectKernelModules=true", "ProtectKernelTunables=true", "ProtectControlGroups=true"),
        "RestrictNamespaces=true",
    ),
    "everything": _service(
        *("User=nobody", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "PrivateDevices=yes"),
        *(
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectClock=yes",
        ),
        *(
            "ProtectControlGroups=yes",
            "ProtectHostname=yes",
            "RuntimeDirectory=everything",
            "CapabilityBoundingSet=",
        ),
    ),
}
# For the boots that have room for one unit only.
_MANY = (
    *(
        "User=www-data",
        "SupplementaryGroups=audio",
        "UMask=0027",
        "Nice=5",
        "OOMScoreAdjust=-500",
        "TasksMax=99%",
    ),
    *("LimitNOFILE=32768", "LimitCORE=1G:2G", "CapabilityBoundingSet=CAP_NET_BIND_SERVICE CAP_CHOWN"),
    *("AmbientCapabilities=CAP_NET_BIND_SERVICE", "ProtectSystem=full", "ProtectHome=yes", "PrivateTmp=yes"),
    *(
        "ProtectControlGroups=yes",
        "ProtectHostname=yes",
        "RuntimeDirectory=parity",
        "WorkingDirectory=/run/parity",
    ),
    *("Environment=A=1", "RestrictRealtime=yes", "LockPersonality=yes", "ProtectKernelModules=yes"),
)
ADOPTED = {
    "simple": _service(*_MANY),
    "exec": _service("Type=exec", *_MANY),
    "forking": _service(
        *("Type=forking", "PIDFile=/run/parity/pid", *_MANY),
        start="ExecStart=/bin/sh -c 'sleep infinity & echo $$! >/run/parity/pid'",
    ),
    "guessed": _service("Type=forking", *_MANY, start="ExecStart=/bin/sh -c 'sleep infinity &'"),
    "notify": _service(
        *("Type=notify", "NotifyAccess=all", *_MANY),
        start="ExecStart=/bin/sh -c 'systemd-notify --ready; exec sleep infinity'",
    ),
}
# As Debian's redis-server has it.
_REDIS = (
    *("User=nobody", "Group=daemon", "RuntimeDirectory=redis-like", "RuntimeDirectoryMode=2755", "UMask=007"),
    *(
        "PrivateTmp=true",
        "LimitNOFILE=65535",
        "PrivateDevices=true",
        "ProtectHome=true",
        "ProtectSystem=strict",
    ),
    *("ReadWritePaths=-/var/lib/no-redis", "CapabilityBoundingSet=", "LockPersonality=true"),
    *("MemoryDenyWriteExecute=true", "NoNewPrivileges=true", "PrivateUsers=true", "ProtectClock=true"),
    *("ProtectControlGroups=true", "ProtectHostname=true", "ProtectKernelLogs=true"),
    *("ProtectKernelModules=true", "ProtectKernelTunables=true", "ProtectProc=invisible", "RemoveIPC=true"),
    *("RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX", "RestrictNamespaces=true", "RestrictRealtime=true"),
    *("RestrictSUIDSGID=true", "SystemCallArchitectures=native", "SystemCallFilter=@system-service"),
    *("SystemCallFilter=~ @privileged @resources", "NoExecPaths=/", "ExecPaths=/usr/bin/sleep /usr/lib /lib"),
)
CALLS = {
    "calls": _service("SystemCallFilter=@system-service", "SystemCallErrorNumber=EPERM"),
    "calls-out": _service("SystemCallFilter=~@clock @module:EACCES @obsolete", "User=nobody"),
    "proc-invisible": _service("ProtectProc=invisible", "User=nobody"),
    "proc-subset": _service("ProcSubset=pid", "ProtectKernelTunables=yes", "ProtectHostname=yes"),
    "no-exec": _service("NoExecPaths=/", "ExecPaths=/usr/bin/sleep /usr/lib /lib"),
    "no-exec-of-some": _service("NoExecPaths=/srv /var -/no/such", "ReadOnlyPaths=/var/log"),
    "private-users": _service("PrivateUsers=yes", "User=nobody", "Group=daemon"),
    "private-users-of-root": _service("PrivateUsers=yes", "LimitNOFILE=65535"),
    "delegating": _service("Delegate=memory pids", "CapabilityBoundingSet=CAP_KILL"),
    "no-limits": _service("LimitNOFILE=infinity", "LimitNPROC=infinity", "TasksMax=infinity"),
    "private-network": _service("PrivateNetwork=yes", "User=nobody"),
    "devices": _service("DevicePolicy=closed", "DeviceAllow=/dev/kmsg r", "DeviceAllow=char-rtc"),
    "resources": _service("MemoryMax=40%", "MemorySwapMax=64M", "TasksMax=12.5%", "OOMPolicy=kill"),
    "resources-of-cpu": _service(
        "CPUQuota=150%", "CPUQuotaPeriodSec=20ms", "CPUWeight=70", "AllowedCPUs=0", "MemoryLimit=400M"
    ),
    "redis-like": _service("Type=exec", *_REDIS),
}
UNITS = {**CALLS, **KERNEL, **TYPES, **PROCESS, **MOUNTS}
