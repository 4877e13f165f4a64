"""The lines of tmpfiles.d(5) that systemd itself has in Debian: of bookworm (252, with passwd) and of trixie (257)."""

from __future__ import annotations

from collections.abc import Mapping

BOOKWORM: Mapping[str, str] = {
    "dbus.conf": """\
d /var/lib/dbus 0755 - - -
L /var/lib/dbus/machine-id - - - - /etc/machine-id
d /run/dbus/containers 0755 messagebus - - -
""",
    "debian.conf": """\
L /run/shm     -    -    -    -   /dev/shm
d /run/sendsigs.omit.d 0755 root root -
L+ /etc/mtab   -    -    -    -  ../proc/self/mounts
""",
    "home.conf": """\
Q /home 0755 - - -
q /srv 0755 - - -
""",
    "journal-nocow.conf": """\
h /var/log/journal - - - - +C
h /var/log/journal/%m - - - - +C
h /var/log/journal/remote - - - - +C
""",
    "legacy.conf": """\
L /var/lock - - - - ../run/lock
L /var/log/README - - - - ../../usr/share/doc/systemd/README.logs
d /run/lock/subsys 0755 root root -
r! /forcefsck
r! /fastboot
r! /forcequotacheck
""",
    "passwd.conf": """\
r! /etc/gshadow.lock
r! /etc/shadow.lock
r! /etc/passwd.lock
r! /etc/group.lock
r! /etc/subuid.lock
r! /etc/subgid.lock
""",
    "provision.conf": """\
f^ /etc/motd.d/50-provision.conf - - - - login.motd
f^ /etc/issue.d/50-provision.conf - - - - login.issue
f^ /etc/hosts - - - - network.hosts
d- /root :0700 root :root -
d- /root/.ssh :0700 root :root -
f^ /root/.ssh/authorized_keys :0600 root :root - ssh.authorized_keys.root
""",
    "static-nodes-permissions.conf": """\
z /dev/snd/seq      0660 - audio -
z /dev/snd/timer    0660 - audio -
z /dev/loop-control 0660 - disk  -
z /dev/net/tun      0666 - -     -
z /dev/fuse         0666 - -     -
z /dev/kvm          0660 - kvm -
z /dev/vhost-net    0660 - kvm -
z /dev/vhost-vsock  0660 - kvm -
""",
    "systemd-network.conf": """\
d /run/systemd/netif 0755 systemd-network systemd-network -
d /run/systemd/netif/links 0755 systemd-network systemd-network -
d /run/systemd/netif/leases 0755 systemd-network systemd-network -
d /run/systemd/netif/lldp 0755 systemd-network systemd-network -
""",
    "systemd-nologin.conf": """\
f+! /run/nologin 0644 - - - "System is booting up."
""",
    "systemd-pstore.conf": """\
d /var/lib/systemd/pstore 0755 root root 14d
""",
    "systemd-tmp.conf": """\
x /tmp/systemd-private-%b-*
X /tmp/systemd-private-%b-*/tmp
x /var/tmp/systemd-private-%b-*
X /var/tmp/systemd-private-%b-*/tmp
R! /tmp/systemd-private-*
R! /var/tmp/systemd-private-*
x  /var/lib/systemd/coredump/.#core*.%b*
r! /var/lib/systemd/coredump/.#*
""",
    "systemd.conf": """\
d /run/user 0755 root root -
f+! /run/utmp 0664 root utmp -
d /run/systemd/ask-password 0755 root root -
d /run/systemd/seats 0755 root root -
d /run/systemd/sessions 0755 root root -
d /run/systemd/users 0755 root root -
d /run/systemd/machines 0755 root root -
d /run/systemd/shutdown 0755 root root -
d /run/log 0755 root root -
z /run/log/journal 2755 root systemd-journal - -
Z /run/log/journal/%m ~2750 root systemd-journal - -
a+ /run/log/journal    - - - - d:group::r-x,d:group:adm:r-x,group::r-x,group:adm:r-x
a+ /run/log/journal/%m - - - - d:group:adm:r-x,group:adm:r-x
a+ /run/log/journal/%m/*.journal* - - - - group:adm:r--
z /var/log/journal 2755 root systemd-journal - -
z /var/log/journal/%m 2755 root systemd-journal - -
z /var/log/journal/%m/system.journal 0640 root systemd-journal - -
a+ /var/log/journal    - - - - d:group::r-x,d:group:adm:r-x,group::r-x,group:adm:r-x
a+ /var/log/journal/%m - - - - d:group:adm:r-x,group:adm:r-x
a+ /var/log/journal/%m/system.journal - - - - group:adm:r--
d /var/lib/systemd 0755 root root -
d /var/lib/systemd/coredump 0755 root root 3d
d /var/lib/private 0700 root root -
d /var/log/private 0700 root root -
d /var/cache/private 0700 root root -
C /run/systemd/tpm2-pcr-signature.json 0444 root root - /.extra/tpm2-pcr-signature.json
C /run/systemd/tpm2-pcr-public-key.pem 0444 root root - /.extra/tpm2-pcr-public-key.pem
""",
    "tmp.conf": """\
D /tmp 1777 root root -
""",
    "var.conf": """\
q /var 0755 - - -
L /var/run - - - - ../run
d /var/log 0755 - - -
f /var/log/wtmp 0664 root utmp -
f /var/log/btmp 0660 root utmp -
f /var/log/lastlog 0664 root utmp -
d /var/cache 0755 - - -
d /var/lib 0755 - - -
d /var/spool 0755 - - -
""",
    "x11.conf": """\
D! /tmp/.X11-unix 1777 root root 10d
D! /tmp/.ICE-unix 1777 root root 10d
D! /tmp/.XIM-unix 1777 root root 10d
D! /tmp/.font-unix 1777 root root 10d
r! /tmp/.X[0-9]*-lock
""",
}
TRIXIE: Mapping[str, str] = {
    "20-systemd-shell-extra.conf": """\
L$ /etc/profile.d/70-systemd-shell-extra.sh - - - - /usr/lib/systemd/profile.d/70-systemd-shell-extra.sh
""",
    "20-systemd-ssh-generator.conf": """\
L$ /etc/ssh/ssh_config.d/20-systemd-ssh-proxy.conf - - - - /usr/lib/systemd/ssh_config.d/20-systemd-ssh-proxy.conf
d /run/sshd 0755
""",
    "20-systemd-stub.conf": """\
C /run/systemd/stub/profile 0444 root root - /.extra/profile
C /run/systemd/stub/os-release 0444 root root - /.extra/os-release
C /run/systemd/tpm2-pcr-signature.json 0444 root root - /.extra/tpm2-pcr-signature.json
C /run/systemd/tpm2-pcr-public-key.pem 0444 root root - /.extra/tpm2-pcr-public-key.pem
""",
    "credstore.conf": """\
d /etc/credstore 0700 root root
d /etc/credstore.encrypted 0700 root root
z /run/credstore 0700 root root
z /run/credstore.encrypted 0700 root root
""",
    "debian.conf": """\
L /run/shm     -    -    -    -   /dev/shm
d /run/sendsigs.omit.d 0755 root root -
d /run/lock    1777 root root -   -
L+ /etc/mtab   -    -    -    -  ../proc/self/mounts
L+ /etc/default/locale - - -  -  ../locale.conf
L+ /etc/vconsole.conf  - - -  -  default/keyboard
""",
    "home.conf": """\
Q /home 0755 - - -
q /srv 0755 - - -
""",
    "journal-nocow.conf": """\
h /var/log/journal - - - - +C
h /var/log/journal/%m - - - - +C
h /var/log/journal/remote - - - - +C
""",
    "legacy.conf": """\
d /run/lock 0755 root root -
L /var/lock - - - - ../run/lock
L$ /var/log/README - - - - ../../usr/share/doc/systemd/README.logs
d /run/lock/subsys 0755 root root -
r! /forcefsck
r! /fastboot
r! /forcequotacheck
""",
    "provision.conf": """\
f^ /etc/motd.d/50-provision.conf - - - - login.motd
f^ /etc/issue.d/50-provision.conf - - - - login.issue
f^ /etc/hosts - - - - network.hosts
d- /root :0700 root :root -
d- /root/.ssh :0700 root :root -
f^ /root/.ssh/authorized_keys :0600 root :root - ssh.authorized_keys.root
""",
    "systemd-network.conf": """\
d$ /run/systemd/netif        0755 systemd-network systemd-network -
d$ /run/systemd/netif/links  0755 systemd-network systemd-network -
d$ /run/systemd/netif/leases 0755 systemd-network systemd-network -
d$ /var/lib/systemd/network  0755 systemd-network systemd-network -
""",
    "systemd-nologin.conf": """\
f+! /run/nologin 0644 - - - "System is booting up."
""",
    "systemd-pstore.conf": """\
d /var/lib/systemd/pstore 0755 root root 14d
""",
    "systemd-tmp.conf": """\
x /tmp/systemd-private-%b-*
X /tmp/systemd-private-%b-*/tmp
x /var/tmp/systemd-private-%b-*
X /var/tmp/systemd-private-%b-*/tmp
R! /tmp/systemd-private-*
R! /var/tmp/systemd-private-*
x  /var/lib/systemd/coredump/.#core*.%b*
r! /var/lib/systemd/coredump/.#*
""",
    "systemd.conf": """\
d /run/user 0755 root root -
d /run/systemd/ask-password 0755 root root -
d$ /run/systemd/seats 0755 root root -
d$ /run/systemd/sessions 0755 root root -
d$ /run/systemd/users 0755 root root -
d /run/systemd/machines 0755 root root -
d$ /run/systemd/shutdown 0755 root root -
d /run/log 0755 root root -
z /run/log/journal 2755 root systemd-journal - -
Z /run/log/journal/%m ~2750 root systemd-journal - -
a+ /run/log/journal    - - - - d:group::r-x,d:group:adm:r-x,group::r-x,group:adm:r-x
A+ /run/log/journal/%m - - - - d:group:adm:r-x,group:adm:r-X
z /var/log/journal 2755 root systemd-journal - -
z /var/log/journal/%m 2755 root systemd-journal - -
z /var/log/journal/%m/system.journal 0640 root systemd-journal - -
a+ /var/log/journal    - - - - d:group::r-x,d:group:adm:r-x,group::r-x,group:adm:r-x
a+ /var/log/journal/%m - - - - d:group:adm:r-x,group:adm:r-x
a+ /var/log/journal/%m/system.journal - - - - group:adm:r--
d /var/lib/systemd 0755 root root -
d /var/lib/systemd/coredump 0755 root root 2w
d /var/lib/systemd/ephemeral-trees 0755 root root 0
d /var/lib/private 0700 root root -
d /var/log/private 0700 root root -
d /var/cache/private 0700 root root -
""",
    "tmp.conf": """\
q /tmp 1777 root root 10d
q /var/tmp 1777 root root 30d
""",
    "var.conf": """\
q /var 0755 - - -
L /var/run - - - - ../run
d /var/log 0755 - - -
d /var/cache 0755 - - -
d /var/lib 0755 - - -
d /var/spool 0755 - - -
""",
    "x11.conf": """\
D! /tmp/.X11-unix 1777 root root 10d
D! /tmp/.ICE-unix 1777 root root 10d
D! /tmp/.XIM-unix 1777 root root 10d
D! /tmp/.font-unix 1777 root root 10d
r! /tmp/.X[0-9]*-lock
""",
}
