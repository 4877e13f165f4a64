"""The layouts of the look-alikes, and the scripts with which their systems set themselves up.

The layout CLOUD is that of Debian's cloud images: a GPT with the root as partition 1, BIOS boot as 14 and the ESP as 15,
GRUB for BIOS and UEFI. The layout APART is of an older kind: an MBR, GRUB for BIOS, and a partition for /boot. Labels name
its file systems. The layout SYSTEMD_BOOT has systemd-boot, and its kernels on the ESP. The layout UNIFIED has a unified kernel
image in place of these kernels. The layout DRACUT is CLOUD with an initramfs of dracut. The layout XFS is CLOUD with XFS as the
file system of the root. The layout BTRFS is APART with the root in a subvolume of btrfs, where Debian's installer puts it.
"""

from __future__ import annotations

import enum

ROOT_PART = "5a1f3a60-3f0e-4f6e-9d2f-5d1a7f3f0b01"

_GROWROOT = "cloud-initramfs-growroot"
_CLOUD_INIT = "cloud-init"
_PACKAGES = (
    _CLOUD_INIT,
    _GROWROOT,
    "cloud-guest-utils",
    "netplan.io",
    "systemd-resolved",
    "dosfstools",
    "nginx-light",
)


class Layout(enum.StrEnum):
    """The partitions and the boot loader of a look-alike."""

    CLOUD = "cloud"
    APART = "apart"
    SYSTEMD_BOOT = "systemd-boot"
    DRACUT = "dracut"
    UNIFIED = "unified"
    XFS = "xfs"
    BTRFS = "btrfs"

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of the system."""
        own = {
            Layout.SYSTEMD_BOOT: ("systemd-boot",),
            Layout.UNIFIED: ("systemd-boot", "binutils"),
            Layout.DRACUT: ("grub-cloud-amd64", "dracut"),
            Layout.XFS: ("grub-cloud-amd64", "xfsprogs"),
            Layout.BTRFS: ("grub-cloud-amd64", "btrfs-progs"),
        }
        left_out = {
            _GROWROOT if self is Layout.DRACUT else "",
            # It makes each boot longer, and only the tests of CLOUD ask for it.
            _CLOUD_INIT if self is not Layout.CLOUD else "",
        }
        others = [name for name in _PACKAGES if name not in left_out]
        return (*own.get(self, ("grub-cloud-amd64",)), *others)


_GRUB = """\
GRUB_CMDLINE_LINUX="console=tty0 console=ttyS0,115200"
GRUB_TERMINAL="console serial"
GRUB_TIMEOUT=0
GRUB_DISABLE_LINUX_UUID=true
"""
_SYSTEMD_BOOT = f"""\
set -ex
mount -o remount,rw /dev/vda1 /
mkfs.vfat -F 32 -n ESP -i 5a1f3a60 /dev/vda15
mkdir -p /boot/efi /etc/kernel
mount /dev/vda15 /boot/efi
cat >/etc/fstab <<END
PARTUUID={ROOT_PART} / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1
UUID=5A1F-3A60 /boot/efi vfat umask=0077 0 0
END
echo debian >/etc/kernel/entry-token
echo root=PARTUUID={ROOT_PART} ro console=tty0 console=ttyS0,115200 >/etc/kernel/cmdline
export SYSTEMD_RELAX_ESP_CHECKS=1
bootctl install --no-variables --esp-path=/boot/efi --make-entry-directory=no
"""
# What the image's own installer has done on a vendor's machine.
_SET_UP = {
    Layout.CLOUD: f"""\
set -ex
mount -o remount,rw /dev/vda1 /
mkfs.vfat -F 32 -n ESP -i 5a1f3a60 /dev/vda15
mkdir -p /boot/efi
mount /dev/vda15 /boot/efi
cat >/etc/fstab <<END
PARTUUID={ROOT_PART} / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1
UUID=5A1F-3A60 /boot/efi vfat defaults 0 0
END
cat >/etc/default/grub.d/20_look_alike.cfg <<END
{_GRUB}GRUB_DISABLE_LINUX_PARTUUID=false
END
grub-install --target=i386-pc /dev/vda
grub-install --target=x86_64-efi --removable --no-nvram --efi-directory=/boot/efi
update-grub
""",
    Layout.APART: f"""\
set -ex
mount -o remount,rw /dev/vda2 /
mkfs.ext4 -q -L BOOT /dev/vda1
e2label /dev/vda2 cloudimg-rootfs
mount /dev/vda1 /mnt
cp -a /boot/. /mnt
umount /mnt
find /boot -mindepth 1 -delete
mount /dev/vda1 /boot
cat >/etc/fstab <<END
LABEL=cloudimg-rootfs / ext4 rw,discard,errors=remount-ro,x-systemd.growfs 0 1
LABEL=BOOT /boot ext4 defaults 0 2
END
mkdir /etc/systemd/system/nginx.service.d
printf '[Service]\\nProtectSystem=full\\n' >/etc/systemd/system/nginx.service.d/own.conf
cat >/etc/default/grub.d/20_look_alike.cfg <<END
{_GRUB}GRUB_DISABLE_LINUX_PARTUUID=true
GRUB_DEVICE=LABEL=cloudimg-rootfs
END
grub-install --target=i386-pc /dev/vda
update-grub
""",
    Layout.SYSTEMD_BOOT: f"""\
{_SYSTEMD_BOOT}mkdir /boot/efi/debian
for kernel in /boot/vmlinuz-*; do
	kernel-install add "${{kernel#/boot/vmlinuz-}}" "$kernel"
done
""",
    # As systemd-stub(7) says. Debian 12 has no ukify(1).
    Layout.UNIFIED: f"""\
{_SYSTEMD_BOOT}mkdir -p /boot/efi/EFI/Linux
for kernel in /boot/vmlinuz-*; do
	version=${{kernel#/boot/vmlinuz-}}
	objcopy --add-section .osrel=/usr/lib/os-release --change-section-vma .osrel=0x20000 \\
		--add-section .cmdline=/etc/kernel/cmdline --change-section-vma .cmdline=0x30000 \\
		--add-section .linux="$kernel" --change-section-vma .linux=0x2000000 \\
		--add-section .initrd="/boot/initrd.img-$version" --change-section-vma .initrd=0x4000000 \\
		/usr/lib/systemd/boot/efi/linuxx64.efi.stub "/boot/efi/EFI/Linux/debian-$version.efi"
done
""",
}
_DISK_OF = {Layout.DRACUT: Layout.CLOUD, Layout.XFS: Layout.CLOUD, Layout.BTRFS: Layout.APART}
_END = """\
rm -f /etc/network/interfaces
[ ! -x /etc/kernel/postinst.d/dracut ] || rm /usr/sbin/update-initramfs
ln -sf /run/systemd/resolve/resolv.conf /etc/resolv.conf
! mountpoint -q /boot/efi || umount /boot/efi
! mountpoint -q /boot || umount /boot
sync
mount -o remount,ro /
"""
# The system runs from a partition of its own, which goes at the end. It copies itself to the root, and continues there.
_MOVED = """\
set -ex
{}cp -ax /. /mnt
for place in dev proc sys run; do
	mount --rbind /$place /mnt/$place
done
cat >/run/in-root <<'IN_ROOT'
{}
IN_ROOT
chroot /mnt sh /run/in-root
umount -R /mnt
"""
_NEW_ROOT = {
    Layout.XFS: """\
modprobe xfs
mkfs.xfs -q -L root /dev/vda1
mount /dev/vda1 /mnt
""",
    Layout.BTRFS: """\
modprobe btrfs
mkfs.btrfs -q -L cloudimg-rootfs /dev/vda2
mount /dev/vda2 /mnt
btrfs subvolume create /mnt/@rootfs
umount /mnt
mount -o subvol=@rootfs /dev/vda2 /mnt
""",
}
_NEW_LINE = {
    Layout.XFS: "sed -i 's| / ext4 .*| / xfs rw,discard,x-systemd.growfs 0 0|' /etc/fstab\n",
    Layout.BTRFS: "sed -i 's| / ext4 .*| / btrfs rw,subvol=@rootfs,x-systemd.growfs 0 0|' /etc/fstab\n",
}


def base_of(layout: Layout) -> Layout:
    """The layout that has the same partitions and boot loader."""
    return _DISK_OF.get(layout, layout)


def is_moved(layout: Layout) -> bool:
    """Whether the system copies itself to a root with another file system."""
    return layout in _NEW_ROOT


def set_up_script(layout: Layout) -> str:
    """The script that makes a disk of the layout out of a system that has just been installed."""
    script = _SET_UP[base_of(layout)]
    if not is_moved(layout):
        return script + _END
    script = "".join(line for line in script.splitlines(keepends=True) if not line.startswith("e2label "))
    return _MOVED.format(_NEW_ROOT[layout], script + _NEW_LINE[layout] + _END)
