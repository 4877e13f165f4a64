#!/bin/sh
# in-chroot.sh ROOT COMMAND...: run COMMAND in ROOT with /proc, /sys and /dev, as root, seeing nothing of the host's files.
# It is started in mount and PID namespaces of its own (unshare --mount --pid --fork), so that nothing stays
# mounted or running when it ends, however it ends. In a bare chroot mounts may reach the outer namespace all the
# same, so they are undone as well.
set -eu
root=$1
shift
unmount() {
	cd /
	for node in null zero full random urandom tty; do
		umount "$root/dev/$node"
	done
	umount "$root/dev"
	umount -l "$root/sys" "$root"
}
trap unmount EXIT
# pivot_root(2) wants a mount.
mount --bind "$root" "$root"
# A user namespace that does not own our network may not mount it, but bind the host's, with all that is mounted in it.
if ! mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null; then
	mount --rbind /sys "$root/sys"
fi
mount -t tmpfs -o mode=0755,size=1m dev "$root/dev"
for node in null zero full random urandom tty; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm" "$root/dev/pts"
ln -s /proc/self/fd "$root/dev/fd"
# It names a directory of the host.
unset TMPDIR
HOME=/root
export HOME
# In a bare chroot "/" is no mount, and cannot be left for another one.
if ! grep -q '^[^ ]* [^ ]* [^ ]* [^ ]* / ' /proc/self/mountinfo; then
	mount -t proc proc "$root/proc"
	trap 'umount "$root/proc"; unmount' EXIT
	chroot "$root" "$@"
	exit
fi
# We are still in the host's root, and /proc/1/root would lead there: so it gets PIDs of its own.
# BusyBox is static, and does what is to be done between two roots as itself. It would also take COMMAND for an applet: a path is none.
cd "$root"
# shellcheck disable=SC2016 # it is for the inner shell
unshare --mount --propagation private --pid --fork --kill-child=SIGKILL -- busybox sh -c '
	mount -t proc proc proc && pivot_root . . && umount -l . && cd / || exit
	name=$1
	shift
	for place in "" usr/local/sbin/ usr/local/bin/ usr/sbin/ usr/bin/ sbin/ bin/; do
		case $place$name in
		/*) file=$name ;;
		*) file=/$place$name ;;
		esac
		if [ -n "$place" ] || [ "$file" = "$name" ]; then
			if [ -x "$file" ]; then
				# Not in our place: PID 1 takes over whatever loses its parent.
				"$file" "$@"
				exit
			fi
		fi
	done
	echo "$name: not found" >&2
	exit 127
' sh "$@"
