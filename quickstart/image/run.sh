#!/bin/sh
# Start this image without QuickStart's tool: ./run.sh, or ./run.sh stock for the distribution's ordinary boot.
# ACCEL=kvm where KVM works; PORT is where the application answers on 127.0.0.1.
# The console is this terminal; C-a x ends the machine.
set -eu
cd "$(dirname "$0")"
initrd=initramfs.img
[ "${1:-}" != stock ] || initrd=initrd.img
accel=${ACCEL:-tcg}
cpu=max
[ "$accel" != kvm ] || cpu=host
exec qemu-system-x86_64 -name @NAME@ -M q35 -accel "$accel" -cpu "$cpu" -smp 1 -m @MEMORY@@UUID@ \
	-nodefaults -no-reboot -nographic -serial mon:stdio \
	-kernel vmlinuz -initrd "$initrd" -append "@CMDLINE@" \
	-drive file=@DISK@,format=@FORMAT@,if=none,id=root -device virtio-blk-pci,drive=root,addr=4 \
	-netdev "user,id=net,hostfwd=tcp:127.0.0.1:${PORT:-8080}-:@GUEST_PORT@" \
	-device virtio-net-pci,netdev=net,mac=@MAC@,addr=3,romfile=
