# shellcheck shell=sh source=/dev/null
# Starts each unit below units/ by the starter before there is a systemd, and has it adopted as init has the application's: the same
# drop-in, the same `adopt`, but for the places where these look. It runs as a further ExecStartPost of the application.
Q=/fast/quickstart
WANTS=/etc/systemd/system/multi-user.target.wants
. $Q/hand-off
. $Q/parity/facts
mkdir -p $WANTS /run/early-units /etc/systemd/system.conf.d
# So many units are adopted at once that a slow host takes minutes.
printf '[Manager]\nDefaultTimeoutStartSec=600\n' >/etc/systemd/system.conf.d/parity.conf
# What the application might do, and what it might find of an earlier boot.
for place in /tmp /var/tmp; do
	echo early >$place/early-file
	mkdir -p $place/systemd-private-00000000000000000000000000000000-x.service-old
	echo old >$place/old-file
	# As init has noted what was there before the application.
	stat -c '%i %Z %n' $place/old-file $place/systemd-private-0* >>/run/quickstart/earlier
done
# As init has put aside what was in /tmp.
mkdir -m 700 /.quickstart-earlier.0
mv /tmp/old-file /tmp/systemd-private-0* /.quickstart-earlier.0/
cat /proc/1/mountinfo >/run/early-units/mountinfo
for place in "$Q"/parity/units/*; do
	name=${place##*/}
	UNIT=parity-$name.service
	RUN=/run/early-units/$name
	cp "$place/unit" "/etc/systemd/system/$UNIT"
	ln -s "../$UNIT" $WANTS/
	$Q/bin/starter "$place/description" "$RUN" || continue
	attributes "$UNIT" >"$RUN/attributes"
	read -r UNIT_TYPE <"$place/type"
	printf 'UNIT=%s\nUNIT_TYPE=%s\nUNIT_GROUP=system.slice/%s\nSOCKETS=0\n' "$UNIT" "$UNIT_TYPE" "$UNIT" >"$RUN/config"
	ln -s $Q/bin "$RUN/bin"
	ln -s $Q/busybox "$RUN/busybox"
	ln -s "$place/description" "$RUN/unit"
	sed "s#^RUN=.*#RUN=$RUN#; s#^Q=.*#Q=$RUN#" $Q/adopt >"$RUN/adopt"
	(Q=$RUN && write_drop_in)
done
