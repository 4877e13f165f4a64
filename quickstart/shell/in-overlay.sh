#!/bin/sh
# in-overlay.sh LOWER WORK IN_CHROOT COMMAND...: run COMMAND by IN_CHROOT (in-chroot.sh) in a root that shows LOWER; what changes
# in it goes to a tmpfs and is gone afterwards. WORK is an empty directory; when the overlay cannot be mounted, WORK/failed says why.
# It is started in mount and PID namespaces of its own, as in-chroot.sh is.
set -eu
lower=$1
work=$2
in_chroot=$3
shift 3
unmount() {
	umount "$work/top/root"
	umount "$work/top"
}
mkdir "$work/top"
mount -t tmpfs -o mode=0755 quickstart "$work/top"
mkdir "$work/top/lower" "$work/top/upper" "$work/top/scratch" "$work/top/root"
# A link without the characters that mean something in mount's options.
mount --bind "$lower" "$work/top/lower"
mount -o remount,bind,ro "$work/top/lower"
options="lowerdir=$work/top/lower,upperdir=$work/top/upper,workdir=$work/top/scratch"
if ! mount -t overlay -o "$options" quickstart "$work/top/root" 2>"$work/why"; then
	mv "$work/why" "$work/failed"
	umount "$work/top/lower"
	umount "$work/top"
	exit 1
fi
umount -l "$work/top/lower"
trap unmount EXIT
sh "$in_chroot" "$work/top/root" "$@"
