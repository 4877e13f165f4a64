#!/bin/sh
# in-overlay.sh LOWER WORK CONFINER OPTION COMMAND...: run COMMAND by CONFINER (with OPTION, unless that is empty) in a root that
# shows LOWER; what changes in it goes to a tmpfs and is gone afterwards. WORK is a directory for it; when something cannot be
# mounted, WORK/failed says why.
# It is started in mount and PID namespaces of its own. In a bare chroot mounts may reach the outer namespace all the same, so they
# are undone as well.
set -eu
lower=$1
top=$2/top
work=$2
confiner=$3
option=$4
shift 4

unmount() {
	for name in "$top/root" "$top/lower" "$top"; do
		umount -l "$name" 2>/dev/null || :
	done
}

# LOWER is bound to a name without the characters that mean something in mount's options.
overlay() {
	mkdir "$top" &&
		mount -t tmpfs -o mode=0755 quickstart "$top" &&
		mkdir "$top/lower" "$top/upper" "$top/scratch" "$top/root" &&
		mount --bind "$lower" "$top/lower" &&
		mount -o remount,bind,ro "$top/lower" &&
		mount -t overlay -o "lowerdir=$top/lower,upperdir=$top/upper,workdir=$top/scratch" quickstart "$top/root"
}

trap unmount EXIT
if ! overlay 2>"$work/why"; then
	mv "$work/why" "$work/failed"
	exit 1
fi
"$confiner" ${option:+"$option"} "$top/root" "$@"
