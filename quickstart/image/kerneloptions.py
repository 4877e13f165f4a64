"""Make the kernel's command lines, and add the options that make the distribution's own kernel boot faster in
a virtual machine (pure).

The page docs/users/command-line.md says how much time each option saves, what the option changes in the running
machine, and why this change is acceptable. Only this module contains the text of the options, such as `tsc=reliable`.
"""

from __future__ import annotations

from collections.abc import Mapping

from quickstart.model import Profile
from quickstart.model.words import KernelOptions

# The sets with which an artefact may be built. The first set is the default.
BUILDABLE = (KernelOptions.BOOT, KernelOptions.STOCK)
# Options without a measured benefit, and options that cost a running machine something, are not in this
# list.
_BOOT = (
    "cryptomgr.notests",
    "no_timer_check",
    "initcall_blacklist=ftrace_check_for_weak_functions,trace_eval_init",
)
# The set as measured since the first series of the bench, so that new results can be compared with old results.
_OURS = (
    "cryptomgr.notests",
    "tsc=reliable",
    "no_timer_check",
    "i8042.noaux",
    "i8042.nomux",
    "i8042.dumbkbd",
    "8250.nr_uarts=1",
    "noreplace-smp",
    "initcall_blacklist=crypto_kdf108_init,blake2s_mod_init,crc_t10dif_mod_init,ftrace_check_for_weak_functions,trace_eval_init",
)
WORDS: Mapping[KernelOptions, tuple[str, ...]] = {
    KernelOptions.STOCK: (),
    KernelOptions.BOOT: _BOOT,
    KernelOptions.OURS: _OURS,
}


def words_of(options: KernelOptions) -> tuple[str, ...]:
    """The words that the set of kernel options ``options`` adds to a command line."""
    return WORDS[options]


def chosen(profile: Profile, asked: KernelOptions | None) -> KernelOptions:
    """The kernel options of a build. The result is ``asked`` if the user has given options. Otherwise, ``asked`` is
    None, and the result is the profile's kernel options.
    """
    return asked or profile.kernel_options


def stock_line(root_uuid: str) -> str:
    """The command line with which an artefact boots the distribution's own way. ``root_uuid`` is the UUID of the root
    volume.
    """
    return f"console=ttyS0 root=UUID={root_uuid} ro panic=10"


def with_options(line: str, options: KernelOptions) -> str:
    """The command line ``line``, followed by the words of ``options``."""
    return " ".join((line, *words_of(options)))


def added(line: str, stock: str) -> tuple[str, ...]:
    """The words of the command line ``line`` that are not in ``stock``, in order."""
    usual = set(stock.split())
    return tuple(word for word in line.split() if word not in usual)
