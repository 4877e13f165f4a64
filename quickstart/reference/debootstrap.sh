#!/bin/sh
# debootstrap.sh ROOT ARGUMENT...: debootstrap --foreign ARGUMENT... where no device node can be made, as in a user namespace: it
# unpacks packages and runs nothing of them. The second stage, which does, is confined (confine.py).
# ROOT, where the arguments put the image, gets a /dev of its own for as long as that lasts; of debootstrap's nodes nothing stays
# in the image, whoever makes it. It is started in mount and PID namespaces of its own, and unmounts what a bare chroot would keep.
set -eu
root=$1
shift
unmount() {
	for node in null zero full random urandom tty console; do
		umount "$root/dev/$node" || :
	done
	umount "$root/dev"
}
mkdir -p "$root/dev"
chmod 755 "$root" "$root/dev"
trap unmount EXIT
mount -t tmpfs -o mode=0755,size=1m dev "$root/dev"
for node in null zero full random urandom tty console; do
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
# What a user's own is named does not get into the image.
HOME=/root
export HOME
# With it debootstrap tries no mknod of its own beforehand, and makes of the nodes what is missing, if it can.
container=lxc debootstrap --foreign "$@"
