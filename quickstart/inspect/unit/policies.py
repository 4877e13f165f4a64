"""Find policies and commands of an image that would have no effect on an early start. Each policy (audit, IMA, IPE,
TOMOYO, fapolicyd, AppArmor's early policy) applies only to processes that start after the policy was set up. The
commands are those that modprobe runs instead of loading a module.

In a stock boot, systemd or a service sets the policies up before any other service starts. A process that starts early
would escape the policies, and init does not run the commands of modprobe. So a build refuses an image that has such a
policy or command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.dpkg import owners
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.files import UNIT_PATHS, assignments, manager_texts
from quickstart.inspect.unit.linked import PULLING_DIRECTORIES, enabled_services, may_start
from quickstart.inspect.unit.pulled import started_of
from quickstart.inspect.unit.values import BadValueError, boolean
from quickstart.parse.printable import brief

IMA_POLICY = PurePosixPath("/etc/ima/ima-policy")
# systemd 257 passes each signed policy NAME.p7b to the kernel when it becomes PID 1 (ipe_setup in src/core/ipe-setup.c).
IPE_PLACES = tuple(map(PurePosixPath, ("/etc/ipe", "/usr/local/lib/ipe", "/usr/lib/ipe")))
# When the kernel executes /sbin/init for the first time, it runs this program, which loads the policy (security/tomoyo/
# load_policy.c). Debian's kernels have TOMOYO, and it needs no word of the command line.
TOMOYO_LOADER = PurePosixPath("/usr/sbin/tomoyo-init")
# The kernel gives an audit context only to a process that is forked after audit was switched on (kernel/auditsc.c, audit_alloc).
# A process from before these start is never audited.
AUDITORS = ("audit-rules", "auditd")
# It decides which programs may run, from the time when it runs itself. It is ordered before nothing, but has no default
# dependencies, so it comes early.
_GUARDS = ("fapolicyd",)
# With this socket, journald switches audit on or off when it starts, as its Audit= says (manager_set_kernel_audit in systemd's
# journald-audit.c). Debian 12 always has the socket, and its journald leaves audit as it is. Since Debian 13, it is disabled; where
# an administrator has enabled it, Audit= is on unless the file says otherwise (NEWS.Debian of systemd 253~rc2).
_AUDIT_SOCKET = "systemd-journald-audit.socket"
AUDIT_LINKS = tuple(
    PurePosixPath(f"/etc/systemd/system/{puller}.wants/{_AUDIT_SOCKET}")
    for puller in ("sockets.target", "systemd-journald.service")
)
# systemd loads this policy when systemd becomes PID 1 (apparmor-setup.c).
EARLY_POLICY = PurePosixPath("/etc/apparmor/earlypolicy")
# modprobe.d(5): a command in place of loading the module. `true` and `false` only forbid the module.
_INSTALL = re.compile(
    r"^[ \t]*install[ \t]+\S+[ \t]++(?!(?:(?:/usr)?/bin/)?(?:true|false)[ \t]*(?:#.*)?$).+", re.MULTILINE
)
# modprobe.d(5): init loads modules by the build's own table, even a module that the administrator has forbidden since
# the build.
_PACKAGES_MODULES = PurePosixPath("/usr/lib/modprobe.d")
MODULE_PLACES = ("/etc/modprobe.d", "/usr/local/lib/modprobe.d")


# Credentials of this name are lines of tmpfiles.d, sysctl.d … (systemd.system-credentials(7)), which systemd's services find here
# (LoadCredential= in systemd.exec(5)).
CREDENTIALS = tuple(
    map(
        PurePosixPath,
        (
            *("/etc/credstore", "/usr/local/lib/credstore", "/usr/lib/credstore"),
            *(
                "/etc/credstore.encrypted",
                "/usr/local/lib/credstore.encrypted",
                "/usr/lib/credstore.encrypted",
            ),
        ),
    )
)
_SETTINGS = ("network", "sysctl", "sysusers", "tmpfiles", "udev")


def refuse_policies(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when the image audits system calls, has a policy that systemd loads when it
    starts, or runs commands when the kernel asks for a module. Neither the policies nor the commands would take
    effect for a process that starts early.
    """
    for names, why in (
        (AUDITORS, "a process that starts before it is never audited"),
        (_GUARDS, "what starts before it is not checked"),
    ):
        watchers = {f"{each}.service" for each in names}
        named = started_of(root, (name for name in watchers if may_start(root, name)))
        for name in sorted(named | watchers & enabled_services(root)):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {name} is enabled, and {why}",
                hint=f"disable {name} in the image",
            )
    if _journald_audits(root):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {_AUDIT_SOCKET} is enabled, journald switches kernel auditing on (Audit=),"
            " and a process that starts before it is never audited",
            hint=f"disable {_AUDIT_SOCKET} in the image, or write Audit=no into its journald.conf",
        )
    _refuse_files(root, unit)
    for path in _module_files(root):
        if command := _INSTALL.search(root.read_text(path).replace("\\\n", " ")):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {path} has `{brief(command[0].strip())}`, which init does not run",
                hint="let a service do its work",
            )


def _refuse_files(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError for a file with a policy or settings that apply only to what starts after systemd."""
    # systemd passes the policy to the kernel when it becomes PID 1 (ima-setup.c). Programs that already run then were
    # neither measured nor appraised.
    for path in (
        IMA_POLICY,
        TOMOYO_LOADER,
        *(found for place in IPE_PLACES for found in root.glob(place / "*.p7b")),
    ):
        if root.resolve(path).canonical is not None or root.link_target(path) is not None:
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {brief(str(path))} is there, and what starts before systemd escapes its policy",
                hint=f"remove {brief(str(path))} from the image",
            )
    for path in (
        found for place in CREDENTIALS for kind in _SETTINGS for found in root.glob(place / f"{kind}.*")
    ):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {brief(str(path))} has settings that systemd applies before services",
            hint=f"put them into {path.name.partition('.')[0]}.d",
        )
    for path in root.glob(EARLY_POLICY / "*"):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {brief(str(path))} confines services from the time when systemd starts",
            hint="remove that file from the image",
        )


def _journald_audits(root: ImageRoot) -> bool:
    """Whether journald switches kernel auditing on in a stock boot."""
    links = [
        link
        for place in map(PurePosixPath, UNIT_PATHS)
        for kind in PULLING_DIRECTORIES
        for link in root.glob(place / f"*.{kind}" / _AUDIT_SOCKET)
    ]
    masks = (root.link_target(PurePosixPath(place) / _AUDIT_SOCKET) == "/dev/null" for place in UNIT_PATHS)
    if not links or any(masks):
        return False
    is_usual = any(link.is_relative_to("/usr/lib") for link in links)
    found = [
        value
        for name, value in assignments(manager_texts(root, "journald.conf"), "[Journal]")
        if name == "Audit"
    ]
    try:
        return boolean(found[-1]) if found and found[-1] else not (found or is_usual)
    except BadValueError:
        return False


def _module_files(root: ImageRoot) -> Iterator[PurePosixPath]:
    """The files of modprobe.d(5) in the administrator's directories, and those files in the packages' directory
    that belong to no package.
    """
    paths = [path for place in MODULE_PLACES for path in root.glob(PurePosixPath(place) / "*.conf")]
    by_packages = [*root.glob(_PACKAGES_MODULES / "*.conf")]
    packaged = owners(root, by_packages) if by_packages else {}
    own = (*paths, *(path for path in by_packages if path not in packaged))
    # Each file is read once, because many names may be links to one large file.
    files = dict.fromkeys(root.resolve(path).canonical for path in own)
    yield from (file for file in files if file is not None and root.host(file).is_file())
