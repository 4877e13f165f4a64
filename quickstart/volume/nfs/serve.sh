#!/bin/sh
# usage: serve.sh client PLACE IMAGE RATE WORD... <SOCKET
# Starts an NFS server and an NBD server. The NBD server reads IMAGE from the NFS server, and serves it on SOCKET, which already listens. The
# command WORD... starts the NBD server without rights, because its client may be a guest that has taken over its QEMU.
#
# Runs as root, as the first process of mount, PID and network namespaces (host/namespaces.py). So all processes and mounts end with this
# script. The NBD server is in this network namespace, and the NFS server is in another one. A veth pair connects them. RATE is the rate
# of this link in both directions, in the notation of tc(8). With `none`, the link is as fast as the host.
#
# PLACE/ganesha.conf already exists, and exports IMAGE's directory, read-only, as /export. IMAGE is the image's name in a URL. Written data
# go to a file without a name in PLACE/written. This directory belongs to the user that the NBD server becomes. That user cannot open PLACE
# by a name.
set -eu

ROLE=$1 PLACE=$2 IMAGE=$3 RATE=$4
shift 4
SERVER=192.0.2.1 CLIENT=192.0.2.2
URL=nfs://$SERVER/export/$IMAGE
LOG=$PLACE/ganesha.log
# What crosses the wire in no time after a pause, two frames, so that a timer that is late costs nothing; and what waits for it, 20 ms
# at 100 Mbit/s.
BURST=3200 QUEUE=256kb

wire() { # INTERFACE ADDRESS
	ip link set lo up
	ip address add "$2/24" dev "$1"
	ip link set "$1" up
	# It counts a frame with its Ethernet header.
	[ "$RATE" = none ] || tc qdisc add dev "$1" root tbf rate "$RATE" burst "$BURST" limit "$QUEUE"
}

await() { # COMMAND... : until it holds, ten seconds at most
	tries=0
	until "$@" >/dev/null 2>&1; do
		[ $((tries += 1)) -le 1000 ] || ended "the wait for '$*'"
		sleep 0.01
	done
}

ended() { # WHAT
	echo "$1 has ended"
	kill -TERM 1
}

server() {
	touch "$PLACE/apart"
	await ip link show dev server
	wire server "$SERVER"
	# QEMU's NFS driver asks it for the ports.
	rpcbind -f &
	await [ -S /run/rpcbind.sock ]
	ganesha.nfsd -F -f "$PLACE/ganesha.conf" -L "$LOG" -p "$PLACE/ganesha.pid" || :
	tail -n 5 "$LOG"
	ended "the NFS server"
}

nbd() { # WORD...
	# The server takes a moment until it answers.
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		if said=$(qemu-img info -f raw "$URL" 2>&1); then
			cd "$PLACE/written"
			# Its socket is descriptor 3 (sd_listen_fds(3)). The server is to take it for root, as whom alone it may read the image.
			# shellcheck disable=SC2016
			TMPDIR=. LISTEN_FDS=1 sh -c 'export LISTEN_PID=$$; exec "$@"' sh "$@" \
				qemu-nbd --format=raw --snapshot --persistent "$URL?uid=0&gid=0" || :
			ended "the NFS client"
			return
		fi
		sleep 0.25
	done
	echo "$said"
	ended "the wait for the NFS server"
}

if [ "$ROLE" = server ]; then
	server
	exit
fi

# What runs in the background has no stdin.
exec 3<&0 </dev/null
mount -t proc proc /proc
# Sockets and state have fixed names there: the host may have its own.
mount -t tmpfs tmpfs /run
mkdir /run/ganesha
mount -t tmpfs tmpfs /var/lib/nfs
trap 'exit 1' TERM
unshare --net -- sh "$0" server "$PLACE" "$IMAGE" "$RATE" 3<&- &
await [ -e "$PLACE/apart" ]
ip link add client type veth peer name server netns $!
wire client "$CLIENT"
nbd "$@" &
# Each of the two says so when it ends, which ends everything.
wait
