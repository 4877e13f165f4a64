"""The only module that starts subprocesses. Each subprocess gets an argv list and an explicit environment. The
subprocess is killed after a time limit, or at the end of the ``with`` block that has started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import resource
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import FileIO
from pathlib import Path
from typing import BinaryIO, cast

from quickstart.errors import CommandError, CpuLimitError, HostLacksError, MissingToolError, NeedsRootError
from quickstart.host.files import temporary_directory
from quickstart.host.identity import Identity
from quickstart.host.places import swapped_by_others

Process = subprocess.Popen[bytes]

_LOG = logging.getLogger(__name__)
_TAIL_BYTES = 4096
# pipe(7)
_PIPE_BYTES = 65536
# linux/prctl.h; stdin, stdout and stderr.
_PR_SET_PDEATHSIG, _STREAMS = 1, 3
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a package download needs to leave the host. These variables may contain a password, so only programs
# that may download something get them.
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Completed:
    """The argv, the exit status and the output (bytes) of a subprocess that has ended."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes


def environment(extra: Mapping[str, str] | None = None, *, proxies: bool = True) -> dict[str, str]:
    """The environment of every subprocess. It has the C locale, a fixed PATH, DEBIAN_FRONTEND=noninteractive, and the
    variables in ``extra``. It also has HOME, TMPDIR and, with ``proxies``, the proxy settings of our own environment.

    HOME is / when another user could replace our own HOME directory, because programs obey the configuration files in
    HOME. No other variable of our environment is passed on, so the subprocess depends only on its caller's arguments.
    Raises HostLacksError when another user could replace the temporary directory, unless ``extra`` names another
    temporary directory.
    """
    given = dict(extra or {})
    passed_on = {name: os.environ[name] for name in (_PROXIES if proxies else ()) if name in os.environ}
    if "TMPDIR" not in given:
        place = temporary_directory()
        # The variable is not passed on unchanged, because another user could make a directory that is
        # missing.
        passed_on |= {"TMPDIR": str(place)} if "TMPDIR" in os.environ else {}
    base = {
        "PATH": _SEARCH_PATH,
        "HOME": _home(os.environ.get("HOME", "/")),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    return {**base, **passed_on, **given}


@cache
def _home(named: str) -> str:
    """Return ``named``, or / if another user could replace or make the directory ``named``. Under sudo, HOME may still
    be the directory of the user who called sudo. For example, if the compiler is ccache, it runs the programs that
    ccache.conf in this directory names.

    The first result is cached. The first call is made before this process enters a user namespace (cli/output.py),
    because inside of the namespace, the process cannot tell who owns a directory.
    """
    place = Path(named)
    return named if place.is_absolute() and os.path.isdir(place) and not swapped_by_others(place) else "/"  # noqa: PTH112


@cache
def package_of(tool: str) -> str:
    """The Debian package that has the program ``tool``, according to our list packages.txt. The result is ``tool``
    itself if this list does not have the program.
    """
    text = resources.files("quickstart.host").joinpath("packages.txt").read_text()
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return {row[0]: row[1] for row in rows}.get(tool, tool)


def tool_path(tool: str) -> Path:
    """The path of ``tool`` on this host. Raises MissingToolError with the command that installs the tool.

    The environment variable QUICKSTART_TOOL_PATH names directories that are searched in place of the host's own
    directories. With this variable, the function raises HostLacksError when another user could replace the tool. The
    function does not examine the host's own directories, which are as safe as the host.
    """
    chosen = os.environ.get("QUICKSTART_TOOL_PATH")
    found = shutil.which(tool, path=_SEARCH_PATH if chosen is None else chosen)
    if found is None:
        raise MissingToolError(tool, package_of(tool))
    is_searched = chosen is not None and "/" not in tool
    if is_searched and (fault := swapped_by_others(Path(found))):
        raise HostLacksError(
            f"{fault}: the tools in QUICKSTART_TOOL_PATH are run here", hint="unset QUICKSTART_TOOL_PATH"
        )
    return Path(found)


def need_tools(*tools: str) -> None:
    """Raise MissingToolError for the first of ``tools`` that is missing on this host."""
    for tool in tools:
        tool_path(tool)


def need_root(step: str) -> None:
    """Raise NeedsRootError unless this process is root, either of the host or of a user namespace. ``step`` is the name
    of the work that needs root, for the message.
    """
    if os.geteuid() != 0:
        raise NeedsRootError(
            f"{step} needs root, or a user namespace",
            hint="`quickstart doctor` says what an ordinary user needs",
        )


def _tail(data: bytes) -> str:
    return data[-_TAIL_BYTES:].decode(errors="replace")


def end_group(process: Process) -> None:
    """Kill all processes of the process group that ``process`` leads, and wait for ``process``."""
    # Children may outlive the leader of the group. When no child is left, the group no longer exists.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def has_ended(process: Process, timeout_s: float) -> bool:
    """Wait up to ``timeout_s`` seconds for the end of ``process``. Return False if the process still runs then."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.poll() is not None


def bad_end(process: Process) -> str:
    """A phrase that says how ``process`` failed (``was killed by signal 9``, ``ended with status 2``). The result is
    empty when the process succeeded or is still running.
    """
    status = process.poll()
    if not status:
        return ""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def core_limit() -> str:
    """The option of prlimit(1) that prevents a core dump. With this option, the kernel writes no core file, and starts
    no handler for core dumps.

    When the kernel's setting core_pattern begins with a pipe sign, it names a handler (systemd-coredump, apport), which
    runs as the host's root. The kernel starts the handler even if the limit for core files (RLIMIT_CORE) is 0, but not
    if the limit is 1 (do_coredump() in the kernel's fs/coredump.c). So the option usually sets the limit 1. When the
    hard limit of this process is already 0, the option sets 0, because raising a hard limit needs a privilege.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return f"--core={0 if hard == 0 else 1}"


def identity_words(identity: Identity | None) -> tuple[str, ...]:
    """The options of setpriv(1) with which a program runs as the user and the groups of ``identity``, and can never
    gain a privilege. The result is empty when ``identity`` is None.
    """
    if identity is None:
        return ()
    words: tuple[str, ...] = ()
    if identity.uid is not None and identity.gid is not None:
        words = ("--reuid", str(identity.uid), "--regid", str(identity.gid))
        kept = ("--groups", ",".join(map(str, identity.groups))) if identity.groups else ("--clear-groups",)
        words += kept if identity.groups is not None else ("--keep-groups",)
    if identity.drop:
        words += ("--bounding-set", "-all")
    return (*words, "--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs")


def bound_words(identity: Identity | None = None) -> tuple[str, ...]:
    """A call of setpriv(1), to be put before the argv of a program. The program gets ``identity``. When the process
    that started setpriv ends, even by SIGKILL, the kernel kills the program (PR_SET_PDEATHSIG).

    The kernel clears PR_SET_PDEATHSIG when a process changes its user (prctl(2)). So setpriv changes the user first and
    then sets PR_SET_PDEATHSIG, in whatever order its options are given.
    """
    return (str(tool_path("setpriv")), *identity_words(identity), "--pdeathsig", "KILL", "--")


def _bound_to_us(argv: Sequence[str | Path], identity: Identity | None = None) -> tuple[str, ...]:
    """``argv`` with words before it that make the kernel kill the program when our process ends (`bound_words`)."""
    _LOG.info("%s", shlex.join(str(word) for word in argv))
    return (*bound_words(identity), *(str(word) for word in argv))


def _cpu_words(cpu_s: int | None) -> tuple[str, ...]:
    """A call of prlimit(1), to be put before the argv of a program. When the program has used ``cpu_s`` seconds of CPU
    time, the signal SIGXCPU ends it. By default, this signal would also make a core dump. The result is empty when
    ``cpu_s`` is None.

    The hard limit stays unchanged, because at the hard limit the kernel sends SIGKILL, as it also does when memory is
    short.
    """
    if cpu_s is None:
        return ()
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = cpu_s if hard == resource.RLIM_INFINITY else min(cpu_s, hard)
    return (str(tool_path("prlimit")), f"--cpu={soft}:", core_limit(), "--")


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    log: Path | None = None,
    check: bool = True,
    cpu_s: int | None = None,
) -> Completed:
    """Run ``argv`` and wait for its end. With ``log``, stdout and stderr go to that file instead of memory.

    Raises MissingToolError when the program is not installed. Raises CommandError when the status is not 0 (unless
    ``check`` is False), and when the program has not ended after ``timeout_s`` seconds. Raises CpuLimitError when the
    process has used ``cpu_s`` seconds of CPU time. The process and its children have ended when this function returns
    or raises, also after Ctrl-C.
    """
    words = (str(tool_path(str(argv[0]))), *(str(word) for word in argv[1:]))
    out = log.open("ab") if log else None
    try:
        process = subprocess.Popen(
            _bound_to_us((*_cpu_words(cpu_s), *words)),
            env=environment(env),
            cwd=cwd,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=out or subprocess.PIPE,
            stderr=subprocess.STDOUT if out else subprocess.PIPE,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            so_far = log_tail(log) if log else _tail((expired.stdout or b"") + (expired.stderr or b""))
            raise CommandError(words, None, so_far) from None
        finally:
            end_group(process)
    finally:
        if out:
            out.close()
    if cpu_s is not None and process.returncode == -signal.SIGXCPU:
        raise CpuLimitError(words, cpu_s)
    done = Completed(words, process.returncode, stdout or b"", stderr or b"")
    if check and done.returncode != 0:
        raise CommandError(words, done.returncode, log_tail(log) if log else _tail(done.stdout + done.stderr))
    return done


def leave_behind(work: Callable[[int], None], kept: int) -> None:
    """Start a copy of this process. The copy calls ``work`` with the open file ``kept``, and then ends. The copy keeps
    no other open file and no terminal. The kernel kills the copy when this process ends. Call this function while this
    process has only one thread.
    """
    ours = os.getpid()
    if os.fork() != 0:
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != ours:
            return
        # So no signal of the terminal ends the copy before this process.
        os.setsid()
        alone = fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, _STREAMS)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(_STREAMS):
            os.dup2(null, stream)
        os.closerange(_STREAMS, alone)
        os.closerange(alone + 1, os.sysconf("SC_OPEN_MAX"))
        work(alone)
    finally:
        # Exit handlers of the first process must not run in its copy.
        os._exit(0)


@dataclass(frozen=True)
class Filter:
    """A process that reads a file which we have opened, and writes its result to ``stdout``. ``errors`` has the first
    64 KiB of its stderr.
    """

    process: Process
    stdout: BinaryIO
    errors: FileIO

    def fault(self) -> str:
        """Wait for the end of the process, and return why it failed. The result is empty when the process succeeded."""
        self.process.wait()
        said = _tail(self.errors.read(_PIPE_BYTES) or b"").strip().partition("\n")[0]
        return "" if self.process.returncode == 0 else said or bad_end(self.process)


@contextmanager
def filtered(argv: Sequence[str | Path], source: int) -> Iterator[Filter]:
    """A context manager for a process that has the open file ``source`` as its stdin. The caller can read the process's
    stdout in the ``with`` block. At the end of the block, the process is killed.

    The process's stderr is a pipe, because a process that may not write to files (RLIMIT_FSIZE) may write to a pipe.
    Nobody reads the pipe before the process ends. So the pipe has the flag O_NONBLOCK, and writing to the full pipe
    fails at once instead of waiting. Output that does not fit into the pipe is lost.
    """
    words = (str(tool_path(str(argv[0]))), *(str(word) for word in argv[1:]))
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with FileIO(reading) as errors:
        try:
            process = subprocess.Popen(
                _bound_to_us(words),
                env=environment(proxies=False),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=writing,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        stdout = cast("BinaryIO", process.stdout)
        try:
            yield Filter(process, stdout, errors)
        finally:
            end_group(process)
            stdout.close()


def log_tail(log: Path | None) -> str:
    """The last lines of a log file. The result is empty when there is no file."""
    if log is None or not log.exists():
        return ""
    return "\n".join(_tail(log.read_bytes()).splitlines()[-15:])


@contextmanager
def background(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    stdin: int | None = None,
    output: int | None = None,
    errors: int | None = None,
    identity: Identity | None = None,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    proxies: bool = False,
    cwd: Path | None = None,
) -> Iterator[Process]:
    """A context manager that runs a process during the ``with`` block. At the end of the block, the process is killed.

    The process's output is appended to the file ``log``, or goes to the descriptor ``output``, or is discarded if
    neither is given. With ``output``, the caller can limit the length of the output. The process's stderr goes to the
    descriptor ``errors`` if it is given, and otherwise to the same place as the output. The process's stdin is the
    descriptor ``stdin``, or empty. With ``identity``, the process runs as that user. The process gets the descriptors
    ``pass_fds`` under their own numbers, the additional environment ``env`` and, with ``proxies``, the host's proxy
    settings. ``cwd`` is the directory in which the process starts. The process enters this directory before it gets
    ``identity``.
    """
    words = (str(tool_path(str(argv[0]))), *(str(word) for word in argv[1:]))
    with ExitStack() as stack:
        target: BinaryIO | int = subprocess.DEVNULL if output is None else output
        if log is not None:
            target = stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            _bound_to_us(words, identity),
            env=environment(env, proxies=proxies),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=target,
            stderr=target if errors is None else errors,
            start_new_session=True,
            pass_fds=pass_fds,
            cwd=cwd,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
