# shellcheck shell=sh
# A newer kernel's package by dpkg. Its postinst calls the hooks as linux-image's does, here only ours: to make an initramfs takes minutes.
mkdir -p /root/k/DEBIAN /root/k/boot /root/k/usr/lib/modules/9.9.9
echo kernel >/root/k/boot/vmlinuz-9.9.9
echo modules >/root/k/usr/lib/modules/9.9.9/modules.order
{
	printf 'Package: linux-image-9.9.9\nVersion: 9.9.9-1\nArchitecture: all\nDescription: nothing\n'
	printf 'Maintainer: nobody <nobody@localhost>\n'
} >/root/k/DEBIAN/control
{
	echo '#!/bin/sh'
	echo 'run-parts --regex="^zz-quickstart$" --arg=9.9.9 --arg=/boot/vmlinuz-9.9.9 /etc/kernel/postinst.d'
} >/root/k/DEBIAN/postinst
chmod 755 /root/k/DEBIAN/postinst
dpkg-deb -b /root/k /root/k.deb >/dev/null
dpkg -i /root/k.deb 2>&1 | grep '^quickstart: '
