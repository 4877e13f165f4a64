#!/bin/sh
# Start this image without QuickStart's tool: ./run.sh, or ./run.sh stock for the distribution's ordinary boot.
# ACCEL=kvm where KVM works; PORT is where the application answers on 127.0.0.1. NETWORK=open lets the machine out, to this host's
# loopback too; otherwise its network leads nowhere.
# The console is this terminal; C-a x ends the machine.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
# QEMU looks for its firmware in the working directory first, and OUT may be a stranger's.
cd /
initrd=initramfs.img
cmdline="@CMDLINE@"
[ "${1:-@DEFAULT@}" != stock ] || { initrd=initrd.img; cmdline="@STOCK_CMDLINE@"; }
accel=${ACCEL:-tcg}
cpu=max
[ "$accel" != kvm ] || cpu=host
restrict=on
[ "${NETWORK:-closed}" != open ] || restrict=off
for file in vmlinuz "$initrd" @DISK@; do
	[ ! -L "$here/$file" ] || { echo "$file is a link: QEMU would work on another file" >&2; exit 2; }
done
# In an option, a comma begins the next value, and two are one in a name.
disk=$(printf '%s\n' "$here/@DISK@" | sed 's/,/,,/g')
exec qemu-system-x86_64 -name @NAME@ -M q35 -accel "$accel" -cpu "$cpu" -smp 1 -m @MEMORY@@UUID@ \
	-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
	-nodefaults -no-user-config -no-reboot -nographic -serial mon:stdio \
	-kernel "$here/vmlinuz" -initrd "$here/$initrd" -append "$cmdline" \
	-drive "file=$disk,format=@FORMAT@,if=none,id=root" -device virtio-blk-pci,drive=root,addr=4 \
	-netdev "user,id=net,restrict=$restrict,hostfwd=tcp:127.0.0.1:${PORT:-8080}-:@GUEST_PORT@" \
	-device virtio-net-pci,netdev=net,mac=@MAC@,addr=3,romfile=
