#!/bin/sh
# in-overlay.sh LOWER WORK CONFINER OPTION COMMAND...: run COMMAND by CONFINER (with OPTION, unless OPTION is empty) in a root that
# shows LOWER. Changes in this root go to a tmpfs, which is gone afterwards. WORK is a directory for the mounts. When something cannot be
# mounted, WORK/failed says why.
# This script is started in mount and PID namespaces of its own. But in a bare chroot, the mounts may still reach the outer
# namespace, so the script also unmounts them at the end.
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
