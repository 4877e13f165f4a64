# shellcheck shell=sh
# A new version of the package that nginx's program is from, by dpkg.
package=$(dpkg -S /usr/sbin/nginx | cut -d: -f1)
mkdir -p /root/u/DEBIAN /root/u/usr/sbin
dpkg-query -s "$package" | sed -e '/^Status:/d' -e '/^Conffiles:/d' -e '/^ \//d' -e 's/^Version: .*/&+upgrade1/' \
	>/root/u/DEBIAN/control
cp /usr/sbin/nginx /root/u/usr/sbin/nginx
dpkg-deb -b /root/u /root/u.deb >/dev/null
dpkg -i --force-all /root/u.deb >/dev/null 2>&1
dpkg-query -W -f '${Version}\n' "$package" | grep -c upgrade1
# By this word, needrestart(1) finds who still runs the old code.
! grep -q '(deleted)' "/proc/$(cat /run/nginx.pid)/maps" || echo deleted
