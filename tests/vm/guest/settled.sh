# shellcheck shell=sh
# Until the distribution's boot is done and the last of ours has gone.
wait_settled() {
	for _ in $(seq 1200); do
		dmesg | grep -q 'quickstart: stamp settled' && return
		! systemctl is-failed -q quickstart-settle.service || return
		sleep 1
	done
}

# The process of the early start. Init has its number when ExecStartPost is done, which may be after the first answer.
early_process() {
	for _ in $(seq 3000); do [ ! -s /run/quickstart/main.pid ] || break; sleep 0.1; done
	cat /run/quickstart/main.pid
}
