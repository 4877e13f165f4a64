# shellcheck shell=sh
# Until the distribution's boot is done and the last of ours has gone.
wait_settled() {
	for _ in $(seq 240); do
		dmesg | grep -q 'quickstart: stamp settled' && return
		sleep 1
	done
}
