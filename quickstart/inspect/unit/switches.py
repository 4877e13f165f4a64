"""Say which kernel settings change others: the kernel has settings with two names, and settings that set others as well (pure).

The sources are the kernel's handlers of these settings: inet_forward_change in net/ipv4/devinet.c; addrconf_fixup_forwarding,
addrconf_disable_change, addrconf_fixup_linkdown and the functions for addr_gen_mode and stable_secret in net/ipv6/addrconf.c;
neigh_sysctl_template in net/core/neighbour.c; tcp_set_default_congestion_control in net/ipv4/tcp_cong.c; dirty_ratio_handler and
its neighbours in mm/page-writeback.c; overcommit_kbytes_handler in mm/util.c; mm/hugetlb.c; fs/notify and kernel/ucount.c (one
counter for both names); net/netfilter/nf_conntrack_standalone.c; and core_param(panic…) in kernel/panic.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from quickstart.inspect.unit.sysctl import KernelSetting

_BELOW = "/proc/sys/"
# A disk's or card's directory has several paths: its place among the devices, and links.
_OF_DEVICE = re.compile(r"/sys/.*/(block|net)/")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class _Group:
    """Who writes one of ``written`` sets all of ``changed``. Both are patterns of paths below /proc/sys, or of paths of
    their own with a slash in front. Those in ``to_zero`` become 0 in each case that matters.
    """

    written: tuple[str, ...]
    changed: tuple[str, ...]
    to_zero: tuple[str, ...] = ()


def _together(*names: str) -> _Group:
    return _Group(names, names)


def _for_all_cards(name: str) -> _Group:
    return _Group((f"net/ipv6/conf/all/{name}",), (f"net/ipv6/conf/*/{name}",))


_HUGE = "/sys/kernel/mm/hugepages/*"
_NODES_HUGE = "/sys/devices/system/node/*/hugepages/*/nr_hugepages"
_GROUPS = (
    _Group(
        ("net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding"),
        ("net/ipv4/ip_forward", "net/ipv4/conf/*/forwarding"),
        # A machine that begins to forward does not obey redirects any more. An image that forbids them itself is a usual one.
        to_zero=("net/ipv4/conf/all/accept_redirects",),
    ),
    *map(
        _for_all_cards,
        ("forwarding", "force_forwarding", "disable_ipv6", "ignore_routes_with_linkdown", "addr_gen_mode"),
    ),
    _Group(("net/ipv6/conf/*/stable_secret",), ("net/ipv6/conf/*/addr_gen_mode",)),
    *(_together(f"net/*/neigh/*/{name}", f"net/*/neigh/*/{name}_ms") for name in ("retrans_time", "base_reachable_time")),
    *(_together(f"net/{ip}/route/gc_min_interval", f"net/{ip}/route/gc_min_interval_ms") for ip in ("ipv4", "ipv6")),
    _together("net/ipv4/tcp_congestion_control", "net/ipv4/tcp_allowed_congestion_control"),
    _together("net/nf_conntrack_max", "net/netfilter/nf_conntrack_max"),
    _together("net/netfilter/nf_conntrack_buckets", "/sys/module/nf_conntrack/parameters/hashsize"),
    _together("vm/dirty_bytes", "vm/dirty_ratio"),
    _together("vm/dirty_background_bytes", "vm/dirty_background_ratio"),
    _together("vm/overcommit_kbytes", "vm/overcommit_ratio"),
    _together("vm/nr_hugepages", "vm/nr_hugepages_mempolicy", f"{_HUGE}/nr_hugepages*", _NODES_HUGE),
    _together("vm/nr_overcommit_hugepages", f"{_HUGE}/nr_overcommit_hugepages"),
    *(_together(f"fs/inotify/max_user_{name}", f"user/max_inotify_{name}") for name in ("instances", "watches")),
    *(_together(f"fs/fanotify/max_user_{name}", f"user/max_fanotify_{name}") for name in ("groups", "marks")),
    *(
        _together(f"kernel/{name}", f"/sys/module/kernel/parameters/{name}")
        for name in ("panic", "panic_on_warn", "panic_print")
    ),
)  # fmt: skip


def undoes(setting: KernelSetting, path: str) -> bool:
    """Whether ``setting``, written once more, may change something that a write to the file ``path`` has changed."""
    ours = tuple(_changed_by(_plain(path), spared=()))
    theirs = tuple(_changed_by(_plain(setting.key), spared=setting.spared))
    if any(key not in setting.spared and _overlap(key, each) for key in ours for each in theirs):
        return True
    zeroed = (key for group in _groups_of(_plain(path), ()) for key in group.to_zero)
    return setting.value != "0" and any(
        key not in setting.spared and _overlap(key, _plain(setting.key)) for key in zeroed
    )


def _changed_by(key: str, spared: tuple[str, ...]) -> Iterator[str]:
    yield key
    for group in _groups_of(key, spared):
        yield from group.changed


def _groups_of(key: str, spared: tuple[str, ...]) -> Iterator[_Group]:
    """The groups that a write to ``key``, a path or pattern that leaves ``spared`` alone, sets off."""
    for group in _GROUPS:
        if any(each not in spared and _overlap(each, key) for each in group.written):
            yield group


def _overlap(one: str, other: str) -> bool:
    """Whether a path may fit both patterns (glob(7)). In doubt it may."""
    ours, theirs = one.split("/"), other.split("/")
    return len(ours) == len(theirs) and all(
        bool(_GLOB.search(a) and _GLOB.search(b)) or "[" in a + b or fnmatchcase(a, b) or fnmatchcase(b, a)
        for a, b in zip(ours, theirs, strict=True)
    )


def _plain(path: str) -> str:
    """``path`` as the groups have it."""
    return _OF_DEVICE.sub(r"/sys/\1/", path.removeprefix(_BELOW))
