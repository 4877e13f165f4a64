"""Whether cloud-init runs at a boot of an image, and when such an image starts early."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickstart.errors import UnsupportedUnitError
from quickstart.inspect.cloudinit import (
    asks_ec2_anywhere,
    early_start,
    has_cloud_init,
    refuse_bootcmd,
    unasked,
)
from quickstart.inspect.firstboot import first_boot, is_unborn
from quickstart.inspect.imageroot import ImageRoot
from quickstart.model import Op
from quickstart.model.words import Early
from quickstart.pack.given import early_for
from tests.unit.imagebuilder import trace

LOCAL = "cloud-init-local.service"
# Configurations of cloud-init, each with whether it runs something at each boot. The contract tests ask the guest package the same.
ALWAYS = [
    ("cloud_init_modules:\n - [write-files, always]\n", True),
    ("cloud_init_modules:\n - [runcmd, once-per-instance]\n", False),
    ("# not always\ncloud_init_modules: []\n", False),
    ("cloud_init_modules:\n - - write-files\n   - always\n", True),
    ("cloud_init_modules: [['write-files', 'always']]\n", True),
    ("write_files:\n- content: |\n    [Service]\n    Restart=always\n", False),
    ("final_message: it is up, always\n", False),
    (
        "runcmd:\n - [docker, run, --pull, always, nginx]\n - - docker\n   - run\n   - --pull\n   - always\n",
        False,
    ),
    ("cloud_init_modules:\n -\n   - write-files\n   - always\n", True),
    ("services:\n  web:\n    restart: always\n", False),
    ("cloud_init_modules:\n - name: write-files\n   frequency: always\n", True),
    ("cloud_init_modules: [{name: write-files, frequency: always}]\n", True),
    ('{"cloud_init_modules": [\n [\n  "write-files",\n  "always"\n ]\n]}\n', True),
    ("cloud_init_modules:\n - [write-files,\n    always]\n", True),
]
BOOTCMD = [
    ("cloud_init_modules:\n - bootcmd\n - write-files\n", False),
    ("# bootcmd: [x]\n", False),
    ("bootcmd: []\n", False),
    ("bootcmd:\n - nft -f /etc/rules\n", True),
    ('{"bootcmd": ["nft -f /etc/rules"]}\n', True),
    ('{"bootcmd":\n [\n  "nft -f /etc/rules"]}\n', True),
    ("? bootcmd\n: [nft -f /etc/rules]\n", True),
    ("bootcmd: [ ]\n", False),
]


@pytest.fixture
def root(tmp_path: Path) -> ImageRoot:
    """Debian 12 with cloud-init: its units hang on cloud-init.target, which a generator enables."""
    for name in ("cloud-init-local", "cloud-init", "cloud-config", "cloud-final"):
        add_unit(tmp_path, f"{name}.service", "etc/systemd/system/cloud-init.target.wants")
    (tmp_path / "etc/cloud").mkdir()
    return ImageRoot(tmp_path)


def add_unit(base: Path, name: str, wants: str) -> None:
    unit, link = base / "lib/systemd/system" / name, base / wants / name
    for path in (unit, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("[Unit]\n")
    link.symlink_to(f"/lib/systemd/system/{name}")


def test_debian(root: ImageRoot) -> None:
    assert has_cloud_init(root)


@pytest.mark.parametrize("name", ["cloud-init-main.service", "cloud-init-network.service"])
@pytest.mark.parametrize("wants", ["etc/systemd/system", "usr/lib/systemd/system"])
def test_newer_units_wherever_they_are_enabled(tmp_path: Path, name: str, wants: str) -> None:
    add_unit(tmp_path, name, f"{wants}/multi-user.target.wants")
    assert has_cloud_init(ImageRoot(tmp_path))


def test_an_image_without_it(tmp_path: Path) -> None:
    assert not has_cloud_init(ImageRoot(tmp_path))
    add_unit(tmp_path, "ssh.service", "etc/systemd/system/multi-user.target.wants")
    assert not has_cloud_init(ImageRoot(tmp_path))


def test_disabled_by_its_own_file(root: ImageRoot) -> None:
    (root.base / "etc/cloud/cloud-init.disabled").write_text("")
    assert not has_cloud_init(root)


def test_removed_but_for_its_links(root: ImageRoot) -> None:
    for unit in (root.base / "lib/systemd/system").iterdir():
        unit.unlink()
    assert not has_cloud_init(root)


def test_not_enabled(root: ImageRoot) -> None:
    for link in (root.base / "etc/systemd/system/cloud-init.target.wants").iterdir():
        link.unlink()
    assert not has_cloud_init(root)


def test_masked(root: ImageRoot) -> None:
    for name in (LOCAL, "cloud-init.service"):
        assert has_cloud_init(root)
        (root.base / "etc/systemd/system" / name).symlink_to("/dev/null")
    assert not has_cloud_init(root)


@pytest.mark.parametrize("wanted", [Early.SEEN, Early.ALWAYS])
def test_the_profiles_word_counts_with_cloud_init(root: ImageRoot, wanted: Early, tmp_path: Path) -> None:
    assert early_start(root, wanted) == wanted
    assert early_start(ImageRoot(tmp_path / "lib"), wanted) == Early.ALWAYS


def test_a_profile_that_never_starts_early(root: ImageRoot, tmp_path: Path) -> None:
    assert early_start(root, Early.NEVER) is Early.NEVER
    assert early_start(ImageRoot(tmp_path / "none"), Early.NEVER) is Early.NEVER


@pytest.mark.parametrize(("text", "is_refused"), ALWAYS)
def test_a_module_that_runs_at_each_boot(
    root: ImageRoot, tmp_path: Path, text: str, *, is_refused: bool
) -> None:
    (tmp_path / "etc/cloud/cloud.cfg").write_text(text)
    if not is_refused:
        refuse_bootcmd(root, "app.service")
        return
    with pytest.raises(UnsupportedUnitError, match="at each boot"):
        refuse_bootcmd(root, "app.service")


def test_a_part_handler_of_the_image(root: ImageRoot, tmp_path: Path) -> None:
    (tmp_path / "etc/cloud/handlers").mkdir()
    (tmp_path / "etc/cloud/handlers/own.py").write_text("")
    with pytest.raises(UnsupportedUnitError, match=r"handlers/own\.py may run at each boot"):
        refuse_bootcmd(root, "app.service")


@pytest.mark.parametrize(("text", "is_refused"), BOOTCMD)
@pytest.mark.parametrize("file", ["cloud.cfg", "cloud.cfg.d/90-rules.cfg"])
def test_commands_of_each_boot(
    root: ImageRoot, tmp_path: Path, file: str, text: str, is_refused: bool
) -> None:
    path = tmp_path / "etc/cloud" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    if not is_refused:
        refuse_bootcmd(root, "app.service")
        return
    with pytest.raises(UnsupportedUnitError, match="has bootcmd"):
        refuse_bootcmd(root, "app.service")
    # Nobody runs them then.
    (tmp_path / "etc/cloud/cloud-init.disabled").write_text("")
    refuse_bootcmd(root, "app.service")


DEBIAN_LIST = "datasource_list: [ NoCloud, ConfigDrive, OpenNebula, Azure, GCE, OpenStack, Ec2, None ]\n"
OTHER_FORM = (
    "says something about datasources in a form that QuickStart does not know; "
    "a list has the form `datasource_list: [ NoCloud, Ec2, None ]`, in one line"
)
DATA = "has data for cloud-init, or says where they are"
CHOICES = [
    (DEBIAN_LIST, ""),
    ("datasource_list: [ Ec2 ]\n", ""),
    ("datasource_list: ['Ec2', \"None\"]  # only this\n", ""),
    ("datasource_list: [ OpenStack, Azure ]\n", ""),
    ("datasource_list: [ None ]\n", ""),
    ("# datasource_list: [ Azure ]\n", ""),
    ("final_message: up after $UPTIME s, datasource $datasource\n", ""),
    (
        "system_info:\n  paths:\n    cloud_dir: /var/lib/cloud/\n    templates_dir: /etc/cloud/templates/\n",
        "",
    ),
    (
        "datasource: # of AWS\n\n  Ec2:\n    timeout: 5\n    apply_network_config: false # no\n# x\ngrowpart:\n  mode: auto\n",
        "",
    ),
    *(
        (text, OTHER_FORM)
        for text in (
            "datasource_list:\n  - 'OpenStack'\n",
            "datasource_list: # only this\n  - OpenStack\n",
            "datasource_list:\n- OpenStack\n",
            "datasource_list: [ OpenStack # our cloud\n ]\n",
            "datasource_list: !!seq [ OpenStack ]\n",
            "datasource_list: OpenStack\n",
            "datasource_list: [ Open Stack ]\n",
            "datasource_list: []\n",
            "datasource_list:[ OpenStack ]\n",
            "? datasource_list\n: [ OpenStack ]\n",
            "x: &d [ OpenStack ]\ndatasource_list: *d\n",
            'x: "a # b"\n"datasource_list": [ OpenStack ]\n',
            '{x: "a # b", datasource_list: [ OpenStack ]}\n',
            '{"datasource_list": ["Azure"]}\n',
            "# x\rdatasource_list: OpenStack\n",
            "datasource: {Ec2: {timeout: 5}}\n",
            '"datasource":\n  Ec2:\n    timeout: 5\n',
            "? datasource\n: {Ec2: {timeout: 5}}\n",
            "datasource:\n  Ec2:\n    key: 5\n",
            "datasource:\n  Ec2: &a\n    timeout: 5\n",
        )
    ),
    *(
        (text, f"has `{key}`, by which cloud-init looks for data in other places")
        for key, text in (
            ("strict_id", "datasource:\n  Ec2:\n    strict_id: false\n"),
            ("MAAS", "datasource:\n  MAAS:\n    timeout: 5\n"),
            ("conf_d", "conf_d: /srv/cloud.cfg.d\n"),
            ("datasource_pkg_list", "datasource_pkg_list: [ own ]\n"),
            ("cloud_dir", "system_info: {paths: {cloud_dir: /srv/cloud}}\n"),
            ("cloud_dir", "system_info:\n  paths:\n    cloud_dir: /var/lib/cloud/x\n"),
        )
    ),
    ("datasource:\n  MAAS: {consumer_key: k, metadata_url: 'http://10.0.0.1/MAAS/metadata/'}\n", DATA),
    ("datasource_list: [ Azure ]\n", "chooses the datasource Azure, which init does not ask"),
    ("datasource_list: [GCE, None]\n", "chooses the datasource GCE, which init does not ask"),
    ("datasource:\n  NoCloud:\n    seedfrom: http://10.0.0.1/\n", DATA),
    ("datasource:\n  Ec2:\n    metadata_urls: ['http://10.0.0.1/']\n", DATA),
    ("manage_etc_hosts: true\n", ""),
    ("preserve_hostname: false\n", ""),
    (
        "preserve_hostname: true\n",
        "has `preserve_hostname`, which may matter to the application in the first boot",
    ),
    # Debian's own form of a list below its key, and how many images switch cloud-init's network off.
    ("---\nusers:\n- default\n", ""),
    ("network: {config: disabled}  # by networkd\n", ""),
    *(
        (text, f"has `{key}`, which may matter to the application in the first boot")
        for key, text in (
            ("network", "network:\n  version: 2\n"),
            ("network", "network: {config: disabled, version: 2}\n"),
            ("mounts", "users:\n  - default\nmounts:\n  - [ /dev/vdb, /var/lib/mysql ]\n"),
            ("write_files", "write_files: []\n"),
            ("runcmd", "runcmd:\n - [ nft, -f, /etc/nft.conf ]\n"),
            ("{mounts: []}", "{mounts: []}\n"),
            ('"mounts": []', '"mounts": []\n'),
            ("? mounts", "? mounts\n: []\n"),
            ("mounts: []", "# x\n\n mounts: []\n users: []\n"),
            ("mounts: []", "---\n mounts: []\n"),
        )
    ),
]


@pytest.mark.parametrize(("text", "reason"), CHOICES)
def test_whether_init_can_ask_for_user_data(root: ImageRoot, text: str, reason: str) -> None:
    place = root.base / "etc/cloud/cloud.cfg.d/90_dpkg.cfg"
    place.parent.mkdir()
    place.write_text(text)
    said = f"/etc/cloud/cloud.cfg.d/90_dpkg.cfg {reason}" if reason else ""
    assert unasked(root) == said
    assert early_start(root, Early.ASK) == (Early.SEEN if said else Early.ASK)


@pytest.mark.parametrize(
    ("text", "is_alone"),
    [
        (DEBIAN_LIST, False),
        ("datasource_list: [ Ec2 ]\n", True),
        ("datasource_list: [ 'Ec2', None ]\n", True),
        ("# datasource_list: [ Ec2 ]\n", False),
        ("datasource_list: [ NoCloud ]\n", False),
        ("", False),
    ],
)
def test_whether_cloud_init_asks_ec2_in_any_machine(root: ImageRoot, text: str, *, is_alone: bool) -> None:
    (root.base / "etc/cloud/cloud.cfg").write_text(text)
    assert asks_ec2_anywhere(root) == is_alone


def test_a_configuration_of_ds_identify(root: ImageRoot) -> None:
    (root.base / "etc/machine-id").write_text("")
    (root.base / "etc/cloud/ds-identify.cfg").write_text("policy: enabled\n")
    assert unasked(root) == "/etc/cloud/ds-identify.cfg says how cloud-init finds its datasource"
    assert "init cannot ask: /etc/cloud/ds-identify.cfg says" in first_boot(root, Early.ASK)


@pytest.mark.parametrize("wanted", [Early.SEEN, Early.ASK, Early.ALWAYS])
def test_without_cloud_init_nobody_is_asked(tmp_path: Path, wanted: Early) -> None:
    assert early_start(ImageRoot(tmp_path), wanted) == Early.ALWAYS


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Early.SEEN, "a first boot is a stock boot"),
        (Early.ASK, "a first boot starts early if the machine brings no user data"),
        (Early.ALWAYS, "a first boot starts early, before cloud-init"),
        (Early.NEVER, "every boot is a stock boot"),
    ],
)
def test_what_a_first_boot_does(root: ImageRoot, wanted: Early, words: str) -> None:
    machine_id = root.base / "etc/machine-id"
    machine_id.write_text("")
    assert first_boot(root, wanted).startswith(words)


@pytest.mark.parametrize("path", ["/etc/hosts", "/etc/hostname", "/etc/ssh/ssh_host_ed25519_key"])
def test_an_application_that_reads_names_waits_for_cloud_init(root: ImageRoot, path: str) -> None:
    """cloud-init may write the machine's name into these files, and would come only after the early start."""
    (root.base / "etc/cloud/cloud.cfg").write_text("manage_etc_hosts: true\n")
    reads, looks = trace((Op.OPEN, path)), trace((Op.LOOKUP, path))
    assert early_for([looks, reads], Early.ASK, root) == Early.SEEN
    assert early_for([looks], Early.ASK, root) == Early.ASK
    assert early_for([reads], Early.ALWAYS, root) == Early.ALWAYS
    line = first_boot(root, Early.ASK, Early.SEEN)
    assert line.startswith("a first boot is a stock boot")
    assert "reads /etc/hosts" in line
    assert first_boot(root, Early.ASK, Early.ASK) == first_boot(root, Early.ASK)


def test_without_cloud_init_names_may_be_read(tmp_path: Path) -> None:
    assert early_for([trace((Op.OPEN, "/etc/hosts"))], Early.ASK, ImageRoot(tmp_path)) == Early.ASK


def test_a_machine_that_systemd_has_not_seen(tmp_path: Path) -> None:
    machine_id = tmp_path / "etc/machine-id"
    machine_id.parent.mkdir()
    for text, unborn in (("", False), ("0" * 32, False), ("uninitialized\n", True)):
        machine_id.write_text(text)
        assert is_unborn(ImageRoot(tmp_path)) == unborn
    machine_id.unlink()
    assert is_unborn(ImageRoot(tmp_path))


def test_without_cloud_init_a_first_boot_is_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("")
    assert first_boot(ImageRoot(tmp_path), Early.SEEN) == ""
