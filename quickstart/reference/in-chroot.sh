#!/bin/sh
# in-chroot.sh ROOT COMMAND...: run COMMAND in ROOT with /proc, /sys and /dev.
# It is started in mount and PID namespaces of its own (unshare --mount --pid --fork), so that nothing stays
# mounted or running when it ends, however it ends. In a bare chroot mounts may reach the outer namespace all the
# same, so they are undone as well.
set -eu
root=$1
shift
unmount() {
	for node in null zero full random urandom tty; do
		umount "$root/dev/$node"
	done
	umount "$root/dev" "$root/sys" "$root/proc"
}
trap unmount EXIT
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=0755,size=1m dev "$root/dev"
for node in null zero full random urandom tty; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
# It names a directory of the host.
unset TMPDIR
chroot "$root" "$@"
