"""Find out whether an image has cloud-init, and what cloud-init means for the early start, in which init starts the
application before systemd (docs/users/cloud-init.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model.words import Early
from quickstart.parse.printable import brief

# The first stages' units; -main and -network are those of cloud-init 24.3 and later.
_UNITS = (
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-main.service",
    "cloud-init-network.service",
)
_UNIT_DIRECTORIES = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
_CONFIGURED = PurePosixPath("/etc/cloud")
# YAML and JSON may break a line anywhere, so the lines are joined. `runs_each_boot` in the guest package has the same
# rules.
_BLANKS = str.maketrans("\n\t", "  ")
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)
# In the list of modules, the name stands as `- bootcmd`.
_BOOTCMD = re.compile(r"""[ {,"']bootcmd["']? *:(?! *\[ *\])""")
# A module that runs at each boot, and not only once for an instance: `[write-files, always]`, `frequency: always`. In
# a command, `always` is not the second word.
_ALWAYS = re.compile(
    r"""(?:\[ *["']?[\w.-]+["']? *,| - +- +["']?[\w.-]+["']? +-|frequency["']? *:) *["']?always["']? *(?:[\],}]| )"""
)
_HANDLERS = PurePosixPath("/etc/cloud/handlers")
# cloud-init documentation, "Datasources": data in the image's configuration, and what lets cloud-init look for data in
# other places than the usual ones. Init looks only at the usual ones (initramfs/init/datasource).
_DATA = re.compile(
    r"""[ {,"'](?:seedfrom|user-data|userdata_raw|metadata_urls?|fs_label|vendor_data2?)["']? *:"""
)
_ELSEWHERE = re.compile(
    r"""[ {,"'](?:(MAAS|strict_id|conf_d|datasource_pkg_list)["']? *:|(cloud_dir)["']? *:(?! *["']?/var/lib/cloud/?["']?[ ,}]))"""
)
# The image's own choice of datasources, in the one form that ds-identify reads. YAML has many more.
_CHOICE = re.compile(
    r"""datasource_list[ \t]*:[ \t]+\[[ \t]*(["']?\w+["']?(?:[ \t]*,[ \t]*["']?\w+["']?)*)[ \t]*\][ \t]*(?:#.*)?"""
)
_NAME = re.compile(r"\w+")
# Settings of datasources: a line for each, and only those that say how long or for what a service is asked.
_SECTION = re.compile(r"datasource[ \t]*:[ \t]*(?:#.*)?")
_SETTING = re.compile(
    r"[ \t]+(?:\w+[ \t]*:"
    r"|(?:timeout|max_wait|retries|apply_network_config|apply_full_imds_network_config)[ \t]*:[ \t]+\w+)"
    r"[ \t]*(?:#.*)?"
)
_ABOUT_DATASOURCES = re.compile(r"""(?<![\w$-])datasource(?:_list|["']?[ \t]*(?::|$))""")
# What the image's own configuration may say at its first level without a change to what the application finds in a
# machine without user data: Debian's own cloud.cfg and the files of its cloud images, and logs.
_HARMLESS = frozenset(
    (
        *("users", "disable_root", "manage_etc_hosts"),
        *("apt", "apt_preserve_sources_list", "apt_pipelining"),
        *("cloud_init_modules", "cloud_config_modules", "cloud_final_modules", "system_info"),
        *(
            "datasource_list",
            "datasource",
            "ssh_pwauth",
            "ssh_deletekeys",
            "ssh_genkeytypes",
            "no_ssh_fingerprints",
        ),
        *("disable_root_opts", "mount_default_fields", "syslog_fix_perms", "growpart", "resize_rootfs"),
        *("_log", "log_cfgs", "output", "final_message", "warnings", "disable_ec2_metadata"),
    )
)
_KEY = re.compile(r"(\w+)[ \t]*:(?:[ \t].*)?")
# Otherwise, cloud-init would not give the machine the name that init sets.
_NAMED = re.compile(r"preserve_hostname[ \t]*:[ \t]+(?:false|False)[ \t]*(?:#.*)?")
# Items of a list may stand at the first level, below their key.
_ITEM = re.compile(r"-(?:[ \t].*)?|---|\.\.\.")
_NO_NETWORK = re.compile(r"network[ \t]*:[ \t]*\{[ \t]*config[ \t]*:[ \t]+disabled[ \t]*\}[ \t]*(?:#.*)?")
_ASKED = frozenset(("NoCloud", "ConfigDrive", "Ec2", "None"))
# ds-identify reads it, and may then find a datasource in another way.
_IDENTIFY = PurePosixPath("/etc/cloud/ds-identify.cfg")
# cloud-init documentation, "How to disable cloud-init".
_DISABLED = PurePosixPath("/etc/cloud/cloud-init.disabled")


def has_cloud_init(root: ImageRoot) -> bool:
    """Whether a boot of the image runs cloud-init. Cloud-init runs if a unit of its first stages is enabled and not
    masked, and if the file /etc/cloud/cloud-init.disabled does not exist.
    """
    if root.resolve(_DISABLED).canonical is not None:
        return False
    return any(_is_enabled(root, name) for name in _UNITS)


def refuse_bootcmd(root: ImageRoot, unit: str) -> None:
    """Raise UnsupportedUnitError when the image's configuration makes cloud-init run something at each boot, before all
    services. There are three such cases.

    - The configuration has `bootcmd`.
    - The configuration gives a module the frequency `always`.
    - The image has a part handler, a Python file in /etc/cloud/handlers that cloud-init runs for parts of user data.

    In each of these cases, an early start would start the application before cloud-init does what the configuration or
    the part handler says.
    """
    if not has_cloud_init(root):
        return
    for path, text in _configuration(root):
        if _BOOTCMD.search(text):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {path} has bootcmd, which cloud-init runs before it at each boot",
                hint="remove bootcmd from the image, and let a service do its work",
            )
        if _ALWAYS.search(text):
            raise UnsupportedUnitError(
                f"{unit} cannot be started early: {path} lets a module of cloud-init run at each boot (`always`)",
                hint="let the module run once for each instance",
            )
    for path in root.glob(_HANDLERS / "*"):
        raise UnsupportedUnitError(
            f"{unit} cannot be started early: {path} may run at each boot, before all services",
            hint="remove the handler from the image",
        )


def _configuration(root: ImageRoot) -> Iterator[tuple[PurePosixPath, str]]:
    """The files of cloud-init's configuration in /etc, each with its text as one line (`_joined`)."""
    for path, text in _files(root):
        yield path, _joined(text)


def _files(root: ImageRoot) -> Iterator[tuple[PurePosixPath, str]]:
    """The files of cloud-init's configuration in /etc, each with its text."""
    files = (*root.glob(_CONFIGURED / "cloud.cfg"), *root.glob(_CONFIGURED / "cloud.cfg.d" / "*.cfg"))
    # Each file is read once, because many names may be links to one large file.
    by_file: dict[PurePosixPath | None, PurePosixPath] = {}
    for path in files:
        by_file.setdefault(root.resolve(path).canonical, path)
    for file, path in by_file.items():
        yield path, root.read_text(file) if file is not None and root.host(file).is_file() else ""


def unasked(root: ImageRoot) -> str:
    """The reason why init cannot find out whether a machine of this image brings user data for cloud-init. Init has to
    find out if the profile has ``early = "ask"``. The result is empty when init can find out.
    """
    if root.resolve(_IDENTIFY).canonical is not None:
        return f"{_IDENTIFY} says how cloud-init finds its datasource"
    for path, text in _files(root):
        joined = _joined(text)
        if _DATA.search(joined):
            return f"{path} has data for cloud-init, or says where they are"
        if setting := _ELSEWHERE.search(joined):
            return (
                f"{path} has `{setting[1] or setting[2]}`, by which cloud-init looks for data in other places"
            )
        if _has_other_form(text):
            return (
                f"{path} says something about datasources in a form that QuickStart does not know; "
                "a list has the form `datasource_list: [ NoCloud, Ec2, None ]`, in one line"
            )
        if key := _other_work(text):
            return f"{path} has `{brief(key)}`, which may matter to the application in the first boot"
    for path, only in _chosen(root):
        if not only <= _ASKED:
            return f"{path} chooses the datasource {brief(min(only))}, which init does not ask"
    return ""


def asks_ec2_anywhere(root: ImageRoot) -> bool:
    """Whether cloud-init asks for EC2's metadata service in any machine, even if the machine is none of EC2. The reason
    is that the configuration chooses the datasource Ec2 alone.
    """
    return any(only == {"Ec2"} for _, only in _chosen(root))


def _chosen(root: ImageRoot) -> Iterator[tuple[PurePosixPath, frozenset[str]]]:
    """The lists of one datasource, with or without None, each with its file. cloud-init takes this datasource, and does
    not find out whether the machine has it.
    """
    for path, text in _files(root):
        for line in text.splitlines():
            chosen = _CHOICE.fullmatch(line)
            only = frozenset(_NAME.findall(chosen[1]) if chosen else ()) - {"None"}
            if len(only) == 1:
                yield path, only


def _other_work(text: str) -> str:
    """The first key at the first level of a file of cloud-init's configuration that is not known to be harmless, or the
    first line that is no plain key. For example, `mounts` and `network` are keys for work that a stock boot does before
    the application, also without any user data. The result is empty when there is no such line.
    """
    is_inside = False
    for line in text.splitlines():
        is_blank = line.strip()[:1] in ("", "#")
        if (
            is_blank
            or _ITEM.fullmatch(line)
            or _NO_NETWORK.fullmatch(line)
            or _NAMED.fullmatch(line)
            or (is_inside and line[0] in " \t")
        ):
            continue
        # The first key may be indented, and then all others are.
        is_inside = True
        key = _KEY.fullmatch(line)
        if key is None or key[1] not in _HARMLESS:
            return key[1] if key else line.strip()
    return ""


def _has_other_form(text: str) -> bool:
    """Whether a file of cloud-init's configuration says something about datasources in another form than the known
    ones.
    """
    in_section = False
    for line in text.splitlines():
        if line.strip()[:1] in ("", "#"):
            continue
        if line[0] in " \t" and in_section:
            if not _SETTING.fullmatch(line):
                return True
            continue
        in_section = _SECTION.fullmatch(line) is not None
        if not in_section and not _CHOICE.fullmatch(line) and _ABOUT_DATASOURCES.search(line):
            return True
    return False


def _joined(text: str) -> str:
    """``text`` without its comments, as one line that begins and ends with a blank."""
    line = _COMMENT.sub("", text).translate(_BLANKS)
    return f" {line} "


def _is_enabled(root: ImageRoot, unit: str) -> bool:
    if root.link_target(PurePosixPath(_UNIT_DIRECTORIES[0], unit)) == "/dev/null":
        return False
    # A link that leads nowhere is none.
    return any(root.glob(PurePosixPath(base, "*.wants", unit)) for base in _UNIT_DIRECTORIES)


def early_start(root: ImageRoot, wanted: Early) -> Early:
    """The machines on which the image's application starts early. SEEN means only the machines that cloud-init has
    already configured. ASK means the machines that cloud-init has already configured, and the machines that bring no
    user data. ALWAYS means every machine, and NEVER means no machine.

    The result is the profile's choice ``wanted``, with two exceptions. If the image has no cloud-init, SEEN and ASK
    become ALWAYS. If init cannot find out whether a machine brings user data (see the function `unasked`), ASK becomes
    SEEN.
    """
    if wanted in (Early.NEVER, Early.ALWAYS):
        return wanted
    if not has_cloud_init(root):
        return Early.ALWAYS
    return Early.ASK if wanted is Early.ASK and not unasked(root) else Early.SEEN
