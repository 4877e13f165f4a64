#!/bin/sh
# shellcheck source=/dev/null
# PID 1 of the box: STARTER WORK. It prints what tests/contract/starterbox.py reads, and ends with every process in it.
starter=$1 work=$2
group=quickstart-test-$$-$(cut -c1-8 /proc/sys/kernel/random/uuid)
mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
mount -t tmpfs -o mode=755 run /run && mkdir /run/box && mount --bind "$work" /run/box || exit 1
cp "$starter" /run/starter
for name in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 box $name || exit 1; done
# As Debian has it. In a sticky one the host's fs.protected_regular (proc_sys_fs(5)) would decide who may open whose log.
mount -t tmpfs -o mode=755 box /var/log || exit 1
for name in /etc/locale.conf /etc/default/locale; do [ ! -e $name ] || mount --bind /dev/null $name || exit 1; done
mount --make-rshared /
cd /
sed "s|^group .*|group $group/app.service|" /run/box/unit >/run/unit
GROUP=/sys/fs/cgroup/$group/app.service
. /run/box/before
bound=
# Init binds the unit's sockets before.
if grep -qE "^(journal-)?socket " /run/unit; then
	ln -s starter /run/caretaker
	bound="/run/caretaker listen all /run/unit"
	# Of a companion: its sockets are in the description of the last unit.
	[ ! -e /run/box/last ] || bound="/run/caretaker listen all /run/box/last"
fi
$bound /run/starter /run/unit /run/quickstart 2>/run/errors
echo "== box-status
$?"
MAIN=$(cat /run/quickstart/main.pid 2>/dev/null)
echo "== box-main-pid
$MAIN
== box-reason"
cat /run/quickstart/reason 2>/dev/null
. /run/box/questions
echo "== box-log"
cat /var/log/quickstart.log /run/errors 2>/dev/null
echo 1 >"$GROUP/cgroup.kill"
while grep -q "populated 1" "$GROUP/cgroup.events"; do sleep 0.05; done
rmdir "$GROUP" "/sys/fs/cgroup/$group"
