# shellcheck shell=sh
# Everything by which a machine that has changed hands could be told from one that has booted the stock way: `== WHAT` and a list.
left() {
	systemctl is-system-running --wait >/dev/null
	# The kernel asks the PS/2 port's devices who they are, on a busy host for longer than the boot takes.
	for _ in $(seq 60); do
		grep -q Mouse /proc/bus/input/devices && break
		sleep 1
	done
	udevadm settle
	sleep 3
	echo '== run'
	find /run -mindepth 1 -printf '%y %m %u %g %p\n'
	echo '== mounts'
	sed 's/^[^ ]* [^ ]* [^ ]* \([^ ]*\) \([^ ]*\) \([^ ]*\) .*- \([^ ]*\) [^ ]* \(.*\)/\2 \4 \1 \3 \5/' /proc/1/mountinfo
	echo '== units'
	systemctl list-units --all --plain --no-legend --no-pager | sed 's/^\([^ ]*\) *\([^ ]*\) *\([^ ]*\) *\([^ ]*\).*/\1 \2 \3 \4/'
	echo '== unit-files'
	systemctl list-unit-files --no-legend --no-pager
	echo '== drop-ins'
	systemctl show -p Id -p DropInPaths '*' | grep -B 1 'DropInPaths=.'
	echo '== environment'
	systemctl show-environment
	echo '== processes'
	for place in /proc/[0-9]*; do
		[ ! -e "$place/exe" ] || echo "$(cat "$place/comm") $(cat "$place/cgroup")"
	done
	echo '== groups'
	find /sys/fs/cgroup -type d
	echo '== addresses'
	ip -o addr show | sed 's/ *valid_lft.*//'
	ip route
	echo '== files'
	find / -xdev \( -path /usr/share -o -path /usr/lib -o -path /proc -o -path /sys \) -prune -o -printf '%y %m %u %g %p\n'
	echo '== end'
}
