"""Records as the appliance says them, of a disk as Debian's cloud images are (tests/images/lookalike.py)."""

from __future__ import annotations

from collections.abc import Mapping

ROOT_PART = "5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0b01"
GRUB_CFG = f"""\
if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${{next_entry}}" ] ; then
   set default="${{next_entry}}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
function load_video {{
  insmod all_video
}}
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1' {{
	load_video
	insmod gzio
	linux	/boot/vmlinuz-6.1.0-1 root=PARTUUID={ROOT_PART} ro console=ttyS0
	initrd	/boot/initrd.img-6.1.0-1
}}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {{
	menuentry 'Debian GNU/Linux, recovery' $menuentry_id_option 'gnulinux-recovery-1' {{
		linux	/boot/vmlinuz-6.1.0-1 root=PARTUUID={ROOT_PART} ro single
		initrd	/boot/initrd.img-6.1.0-1
	}}
}}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {{
	fwsetup
}}
"""
FSTAB = f"""\
# a comment
PARTUUID={ROOT_PART} / ext4 rw,x-systemd.growfs 0 1
UUID=5A1F-3A60 /boot/efi vfat defaults 0 0
"""
BOOT_SECTOR = (
    b"\xeb\x63\x90".ljust(384, b"\0")
    + b"GRUB \0Geom\0Hard Disk\0Read\0 Error".ljust(126, b"\0")
    + b"\x55\xaa"
)
PRESENT = (
    *("./usr/lib/systemd/systemd", "./lib/systemd/systemd", "./usr/bin/cloud-init", "./usr/bin/growpart"),
    *("./usr/sbin/update-initramfs", "./usr/sbin/ifup"),
)
RECORDS: Mapping[str, bytes] = {
    "sectors": b"4458496\n",
    "sector-bytes": b"512\n",
    "boot-sector": BOOT_SECTOR,
    "blkid 0": b"DEVNAME=/dev/vda\nPTUUID=5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0c01\nPTTYPE=gpt\n",
    "partition 1": b"262144 4194304\n",
    "blkid 1": (
        b"DEVNAME=/dev/vda1\nUUID=5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0a01\nVERSION=1.0\nBLOCK_SIZE=4096\nTYPE=ext4\n"
        b"USAGE=filesystem\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_UUID=" + ROOT_PART.encode() + b"\n"
        b"PART_ENTRY_TYPE=4f68bce3-e8cd-4db1-96e7-fbcaf984b709\nPART_ENTRY_NUMBER=1\n"
    ),
    "space 1": b"4096 498138 329359 299049\n",
    "top 1": b"./etc\n./usr\n./boot\n",
    "boot 1": b"14186432 ./boot/vmlinuz-6.1.0-1\n14585366 ./boot/initrd.img-6.1.0-1\n",
    "links 1": b"./sbin/init /lib/systemd/systemd\n",
    "present 1": "\n".join(PRESENT).encode() + b"\n",
    "file 1 ./usr/lib/os-release": b'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n',
    "file 1 ./etc/fstab": FSTAB.encode(),
    "file 1 ./boot/grub/grub.cfg": GRUB_CFG.encode(),
    "file 1 ./boot/grub/grubenv": b"# GRUB Environment Block\n".ljust(1024, b"#"),
    "enabled 1": b"./etc/systemd/system/multi-user.target.wants/nginx.service\n",
    "partition 14": b"2048 6144\n",
    "blkid 14": b"DEVNAME=/dev/vda14\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_TYPE=21686148-6449-6e6f-744e-656564454649\n",
    "partition 15": b"8192 253952\n",
    "blkid 15": (
        b"DEVNAME=/dev/vda15\nLABEL=ESP\nUUID=5A1F-3A60\nTYPE=vfat\nUSAGE=filesystem\n"
        b"PART_ENTRY_TYPE=c12a7328-f81f-11d2-ba4b-00a0c93ec93b\nPART_ENTRY_NUMBER=15\n"
    ),
    "space 15": b"2048 62500 60000 60000\n",
    "boot 15": b"1048504 ./EFI/BOOT/BOOTX64.EFI\n4183488 ./EFI/BOOT/grubx64.efi\n117 ./EFI/BOOT/grub.cfg\n",
    "file 15 ./EFI/BOOT/grub.cfg": b"configfile $prefix/grub.cfg\n",
}
# A disk without a table, as small as one can be that has a system.
ONE_FILE_SYSTEM: Mapping[str, bytes] = {
    "sectors": b"9\n",
    "sector-bytes": b"512\n",
    "boot-sector": b"",
    "blkid 0": b"TYPE=ext4\n",
    "space 0": b"1 1 1 1\n",
    "present 0": b"./lib/systemd/systemd\n",
    "file 0 ./etc/os-release": b"",
}


def said(records: Mapping[str, bytes]) -> bytes:
    """``records`` as the appliance prints them."""
    parts = [b"%s %d\n%s\n" % (name.encode(), len(content), content) for name, content in records.items()]
    return b"".join((*parts, b"end 1\n\n\n"))


def changed(**changes: bytes | None) -> Mapping[str, bytes]:
    """RECORDS with other contents. A key is a name with underscores for blanks; None takes the record away."""
    found = dict(RECORDS)
    for key, content in changes.items():
        name = key.replace("_", " ")
        if content is None:
            del found[name]
        else:
            found[name] = content
    return found
