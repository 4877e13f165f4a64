"""Find the kernel settings that also change other settings. Some settings of the kernel have two names, so a write to
one name also changes the value of the other name. For certain other settings, a write makes the kernel change further
settings, too. The functions are pure.

The sources are the kernel's handlers of these settings:

- net/ipv4/devinet.c: inet_forward_change
- net/ipv6/addrconf.c: addrconf_fixup_forwarding, addrconf_disable_change, addrconf_fixup_linkdown, and the functions
  for addr_gen_mode and stable_secret
- net/core/neighbour.c: neigh_sysctl_template
- net/ipv4/tcp_cong.c: tcp_set_default_congestion_control
- mm/page-writeback.c: dirty_ratio_handler and the handlers next to it
- mm/util.c: overcommit_kbytes_handler
- mm/hugetlb.c and net/netfilter/nf_conntrack_standalone.c
- fs/notify and kernel/ucount.c: one counter for two names of a setting
- kernel/panic.c: core_param(panic…)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from quickstart.inspect.unit.sysctl import KernelSetting

_BELOW = "/proc/sys/"
# The directory of a disk or card has several paths, which are its place among the devices, and links.
_OF_DEVICE = re.compile(r"/sys/.*/(block|net)/")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class _Group:
    """A process that writes one of the settings ``written`` also changes all settings ``changed``. The two fields have
    patterns of paths. A pattern with a slash in front is a pattern of complete paths, and any other pattern is for
    paths below /proc/sys. The settings ``to_zero`` become 0 in each case that matters here.
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
        # A machine that begins to forward packets no longer obeys redirects. Many images forbid redirects themselves.
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


def undoing(settings: Iterable[KernelSetting], paths: Iterable[str]) -> tuple[str, KernelSetting] | None:
    """Find a file in ``paths`` and a setting in ``settings`` that disagree. A file and a setting disagree if a second
    write of the setting may change something that a write to the file has changed. Return the first such pair (file,
    setting), or None.
    """
    # Each pattern is compared once, because a trace may have many paths, but the groups have few.
    ours: dict[str, str] = {}
    zeroed: dict[str, str] = {}
    for path in paths:
        key = _plain(path)
        groups = tuple(_groups_of(key, ()))
        for each in (key, *(changed for group in groups for changed in group.changed)):
            ours.setdefault(each, path)
        for each in (zero for group in groups for zero in group.to_zero):
            zeroed.setdefault(each, path)
    patterns = {key: path for key, path in ours.items() if _GLOB.search(key)}
    for setting in settings:
        key = _plain(setting.key)
        groups = tuple(_groups_of(key, setting.spared))
        for each in (key, *(changed for group in groups for changed in group.changed)):
            if (found := _found(each, ours, patterns, setting.spared)) is not None:
                return found, setting
        if setting.value != "0" and (found := _found(key, zeroed, {}, setting.spared)) is not None:
            return found, setting
    return None


def _found(
    key: str, ours: Mapping[str, str], patterns: Mapping[str, str], spared: tuple[str, ...]
) -> str | None:
    """The path that ``ours`` has for a key which ``key`` may match, or None. The function ignores the keys in
    ``spared``. ``patterns`` are the items of ``ours`` whose keys are patterns.
    """
    if key in ours and key not in spared:
        return ours[key]
    candidates = ours if _GLOB.search(key) else patterns
    return next(
        (path for each, path in candidates.items() if _overlap(key, each) and each not in spared), None
    )


def _groups_of(key: str, spared: tuple[str, ...]) -> Iterator[_Group]:
    """The groups of settings that a write to ``key`` changes. ``key`` is a path, or a pattern that does not apply to
    the paths in ``spared``.
    """
    for group in _GROUPS:
        if any(_overlap(each, key) and each not in spared for each in group.written):
            yield group


def _overlap(one: str, other: str) -> bool:
    """Whether some path may match both patterns (glob(7)). The result is true when this is not certain."""
    ours, theirs = one.split("/"), other.split("/")
    return len(ours) == len(theirs) and all(
        a == b
        or "[" in a + b
        or bool(_GLOB.search(a) and _GLOB.search(b))
        or fnmatchcase(a, b)
        or fnmatchcase(b, a)
        for a, b in zip(ours, theirs, strict=True)
    )


def _plain(path: str) -> str:
    """``path`` in the form that the patterns of ``_GROUPS`` have."""
    return _OF_DEVICE.sub(r"/sys/\1/", path.removeprefix(_BELOW))
