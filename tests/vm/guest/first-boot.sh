# shellcheck shell=sh
# What a machine says after the hand-off, each answer behind its name. The first is taken while systemd has hardly begun.
early=$(cat /run/nginx.pid)
wait_settled

answer() {
	name=$1
	shift
	echo "$name: $("$@" 2>&1 | tr '\n' ' ')"
}
main_pid_is_the_early_one() {
	[ "$(systemctl show -P MainPID nginx)" = "$early" ] && echo yes
}
ours() {
	ls -d /run/quickstart* /run/systemd/system/* /run/tmpfiles.d/quickstart* 2>/dev/null
	systemctl list-units --all --plain --no-legend "quickstart*"
}
address() {
	ip -4 -o addr show enp0s3 | grep -o "inet .* valid_lft [0-9]*sec" | sed "s/valid_lft .*/limited/"
}
identity() {
	wc -c </etc/machine-id
	ls /etc/ssh/ssh_host_ed25519_key
}
reload() {
	page='location = /edited { return 200 "edited"; }'
	sed -i "s#server_name _;#server_name _; $page#" /etc/nginx/sites-available/default
	systemctl reload nginx
	sleep 1
	bash -c 'exec 3<>/dev/tcp/10.0.2.15/80; printf "GET /edited HTTP/1.0\r\n\r\n" >&3; tail -n 1 <&3'
	echo
	[ "$(cat /run/nginx.pid)" = "$early" ] && echo same
}
restart() {
	systemctl restart nginx
	systemctl is-active nginx
	readlink "/proc/$(cat /run/nginx.pid)/exe"
}
log_in() {
	mkdir -p /root/.ssh
	ssh-keygen -q -t ed25519 -N "" -f /root/key
	cp /root/key.pub /root/.ssh/authorized_keys
	ssh -q -o StrictHostKeyChecking=no -i /root/key root@10.0.2.15 "echo logged in; cat /proc/self/cgroup"
}
install_unrelated() {
	mkdir -p /root/p/DEBIAN /root/p/opt
	{
		printf 'Package: unrelated\nVersion: 1\nArchitecture: all\nDescription: nothing\n'
		printf 'Maintainer: nobody <nobody@localhost>\n'
	} >/root/p/DEBIAN/control
	echo here >/root/p/opt/unrelated
	dpkg-deb -b /root/p /root/unrelated.deb >/dev/null
	apt-get install -y -q /root/unrelated.deb >/dev/null 2>&1
	cat /opt/unrelated
}

answer running systemctl is-system-running
answer failed systemctl --failed --no-legend --plain
answer same-pid main_pid_is_the_early_one
answer active systemctl is-active nginx ssh cron
answer unit systemctl show -P Type -P DropInPaths nginx
answer ours ours
answer address address
answer leases ls /var/lib/dhcp/
answer identity identity
answer reload reload
answer restart restart
answer ssh log_in
answer install install_unrelated
