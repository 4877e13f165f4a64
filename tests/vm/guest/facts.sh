# shellcheck shell=sh
# The limits of a unit's cgroup, by file, without a process for each; and whose the group is.
attributes() {
	for name in pids.max memory.max memory.high memory.swap.max memory.oom.group cpu.max cpu.weight cpuset.cpus; do
		file=/sys/fs/cgroup/system.slice/$1/$name value=
		[ ! -e "$file" ] || { read -r value <"$file" && echo "$name $value"; }
	done
	file=/sys/fs/cgroup/system.slice/$1
	# shellcheck disable=SC2046
	echo owners $(stat -c %U:%G:%a "$file" "$file/cgroup.procs" "$file/cgroup.subtree_control" "$file/cgroup.threads")
}
# What is compared of every process of UNIT: its main one, and the others by name and user. `== UNIT WHEN ROLE PID FILE` goes before each.
facts() {
	main=$(systemctl show -P MainPID "$1")
	for _ in $(seq 100); do
		# A unit of Type=simple counts as started before its program is executed.
		case $(readlink "/proc/$main/exe") in */systemd*) sleep 0.1 ;; *) break ;; esac
	done
	while read -r pid; do
		role=main
		[ "$pid" = "$main" ] || role=$(tr ' ' _ <"/proc/$pid/comm")/$(stat -c %u "/proc/$pid")
		for file in status limits cgroup oom_score_adj mountinfo cmdline environ; do
			echo "== $1 $2 $role $pid $file"
			tr '\0' '\n' <"/proc/$pid/$file"
		done
		echo "== $1 $2 $role $pid exe"
		readlink "/proc/$pid/exe"
		echo "== $1 $2 $role $pid streams"
		stream=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^JOURNAL_STREAM=.*://p')
		# sshd writes its title over its environment, so its sockets cannot be told apart.
		readlink "/proc/$pid/fd/0" "/proc/$pid/fd/1" "/proc/$pid/fd/2" | sed "s/^socket:\[${stream:-[0-9]*}\]\$/JOURNAL_STREAM/"
	done <"/sys/fs/cgroup$(systemctl show -P ControlGroup "$1")/cgroup.procs"
	echo "== $1 $2 unit 0 show"
	systemctl show -p Type -p ActiveState -p DropInPaths -p MainPID "$1"
	echo "== $1 $2 unit 0 attributes"
	attributes "$1"
	echo "== $1 $2 first 1 mountinfo"
	cat /proc/1/mountinfo
}
# Of the adopted processes, then of those that systemd itself has started.
adopted_and_restarted() {
	facts "$1" adopted
	systemctl restart "$1" || systemctl status "$1"
	sleep "${2:-0}"
	facts "$1" restarted
}
