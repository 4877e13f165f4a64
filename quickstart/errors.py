"""Every error that QuickStart raises on purpose.

::

    QuickStartError                 exit 1   the work failed
    ├── BadInputError               exit 2   what the user gave cannot be used
    │   ├── FaultyFileError                  a user's file is not valid; the error names every fault
    │   │   ├── ProfileError                 the file is a profile; the error names the key of each fault
    │   │   ├── StorageModelError            the file is a storage model; the error names the key of each fault
    │   │   ├── MatrixError                  the file is a matrix; the error names the key of each fault
    │   │   └── ResultsError                 the file is results.json; the error names the place of each fault
    │   ├── ArtefactError                    an artefact is damaged, or has contents that build never makes
    │   ├── IncomparableError                the numbers of two results cannot be compared
    │   ├── OtherResultsError                results.json has another matrix, artefact, version or host than this call
    │   ├── UnsupportedUnitError             the image does not have a unit, or the unit cannot be started early
    │   └── OutputExistsError                OUT exists and must not be replaced
    ├── HostLacksError              exit 3   the host lacks a tool, a privilege or disk space
    │   ├── MissingToolError                 a program is not installed
    │   ├── NeedsRootError                   a step has to run as root
    │   └── GuestLacksError                  this backend's guests cannot do what a verb needs
    ├── CommandError                exit 1   a subprocess failed or ran out of time
    │   └── CpuLimitError                    a subprocess used more CPU time than its caller allows
    ├── ReferenceImageError         exit 1   the reference image could not be made
    ├── TraceError                  exit 1   the reference boot's logs are not complete
    ├── StartSetError               exit 1   no initramfs can be made from this image, or it exceeds the memory budget
    │   └── ImageFileError          exit 2   a path of the image cannot be read as a regular file
    ├── NoProfileError              exit 1   no profile can be written for a service
    ├── GuestError                  exit 1   a guest died, hung or gave an invalid answer
    │   ├── GuestEndedError                  the guest shut down or rebooted before it was ready
    │   ├── NotSettledError                  the guest was ready, but the distribution's boot did not finish
    │   └── UntraceableError                 the guest's kernel cannot trace block requests
    ├── CloudError                  exit 1   AWS refused a call, or did not answer
    │   ├── DeniedError                      the account has no permission for a call
    │   └── UnavailableError                 AWS did not answer, or was busy for too long
    ├── VolumeError                 exit 1   the volume's server died or gave a wrong answer
    └── MeasurementError            exit 4   the measured numbers are wrong and must not be shown
        ├── MixedClocksError                 times of two clocks in one table
        └── TraceFullError                   the trace buffer was full before the guest was ready

Only ``quickstart.cli`` turns these errors into exit codes. Other code raises these errors, lets them pass
through, or handles them itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class QuickStartError(Exception):
    """An error that QuickStart raises on purpose. ``message`` says what failed, and names the file, unit or other
    object. ``hint`` says what to do next. ``details`` has further lines, for example one line for each fault, or the
    lines that a program printed.

    The message and the hint are one line each. They may contain untrusted names, for example of files. A line break in
    the message or the hint can only come from such a name, so cli/output.py escapes the line break. Text of several
    lines belongs in ``details``. When QuickStart prints the lines of ``details``, it puts a mark before each line.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)

    @property
    def lines(self) -> tuple[str, ...]:
        """The message, followed by the lines in ``details``."""
        return (self.message, *self.details)

    def __str__(self) -> str:
        return "\n".join(self.lines)


class BadInputError(QuickStartError):
    exit_code = 2


class FaultyFileError(BadInputError):
    """A user's file is not valid. ``problems`` has one line for each fault."""

    saying = "{} is not valid"

    def __init__(self, source: str, problems: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__(f"{self.saying.format(source)}:", hint=hint, details=problems)
        self.problems = tuple(problems)


class ProfileError(FaultyFileError):
    saying = "profile {} is not valid"


class StorageModelError(FaultyFileError):
    saying = "storage model {} is not valid"


class MatrixError(FaultyFileError):
    saying = "matrix {} is not valid"


class ResultsError(FaultyFileError):
    saying = "results {} are not valid"


class ArtefactError(BadInputError):
    pass


class OtherResultsError(BadInputError):
    """The results in the file ``source`` were measured with another matrix (list of measurements), artefact, version
    or host than the present call of `quickstart bench` uses. So new samples must not be added to these results.
    ``differences`` has one line for each difference.
    """

    def __init__(self, source: str, differences: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__(f"{source} was measured differently:", hint=hint, details=differences)
        self.differences = tuple(differences)


class IncomparableError(BadInputError):
    """Two results of the bench cannot be compared with each other. ``obstacles`` has one line for each reason."""

    def __init__(self, obstacles: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__("A and B cannot be compared:", hint=hint, details=obstacles)
        self.obstacles = tuple(obstacles)


class UnsupportedUnitError(BadInputError):
    pass


class OutputExistsError(BadInputError):
    pass


class HostLacksError(QuickStartError):
    exit_code = 3


class MissingToolError(HostLacksError):
    """``tool`` is not installed on this host. The hint is the command that installs ``tool``."""

    def __init__(self, tool: str, package: str) -> None:
        super().__init__(f"{tool} is not installed", hint=f"apt-get install {package}")
        self.tool = tool
        self.package = package


class NeedsRootError(HostLacksError):
    pass


class GuestLacksError(HostLacksError):
    """A verb (a subcommand of `quickstart`) needs a capability that the guest's backend does not have.
    quickstart/guest.py defines the capabilities, such as the execution of commands in the guest.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"cannot {what}: {why}")


class CommandError(QuickStartError):
    """A subprocess failed. ``returncode`` is None when the subprocess ran out of time. ``tail`` has the last
    lines that the subprocess printed.
    """

    def __init__(
        self, argv: Sequence[str], returncode: int | None, tail: str, *, hint: str | None = None
    ) -> None:
        how = "ran out of time" if returncode is None else f"ended with status {returncode}"
        details = tail.rstrip().splitlines() if tail.strip() else ()
        super().__init__(f"{argv[0]} {how}: {' '.join(argv)}", hint=hint, details=details)
        self.argv = tuple(argv)
        self.returncode = returncode
        self.tail = tail


class CpuLimitError(CommandError):
    """The kernel ended a subprocess that had used ``limit_s`` seconds of CPU time."""

    def __init__(self, argv: Sequence[str], limit_s: int) -> None:
        super().__init__(argv, None, f"it used more than {limit_s} s of CPU time")
        self.limit_s = limit_s


class ReferenceImageError(QuickStartError):
    pass


class TraceError(QuickStartError):
    pass


class StartSetError(QuickStartError):
    pass


class ImageFileError(StartSetError):
    """A path of the image cannot be used. Either the file is not a regular file, is too large or cannot be read. Or the
    path leads through a loop of links or through too many components. Or a glob matches too many names.
    """

    exit_code = 2


class NoProfileError(QuickStartError):
    """`quickstart profile new` cannot write a profile for a service. ``problems`` has one line for each reason."""

    def __init__(self, unit: str, problems: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__(f"no profile was written for {unit}:", hint=hint, details=problems)
        self.problems = tuple(problems)


class GuestError(QuickStartError):
    """A guest died, hung or gave an invalid answer. ``console_tail`` has the last lines of the guest's console."""

    def __init__(
        self, message: str, *, console_tail: str = "", hint: str | None = None, details: Sequence[str] = ()
    ) -> None:
        if console_tail.strip():
            details = (*details, "last console lines:", *console_tail.rstrip().splitlines())
        super().__init__(message, hint=hint, details=details)
        self.console_tail = console_tail


class GuestEndedError(GuestError):
    """The guest ended by itself before it was ready, for example after a panic. A reboot also ends a guest, because
    QuickStart runs QEMU with the option -no-reboot.
    """


class NotSettledError(GuestError):
    """The machine was ready, but the distribution's boot did not finish in time."""

    HINT: ClassVar[str] = (
        "`--when ready` does not wait for the whole machine; `--settle-timeout S` waits longer"
    )

    def __init__(self, message: str, console_tail: str = "") -> None:
        super().__init__(message, console_tail=console_tail, hint=self.HINT)


class TooMuchSaidError(GuestError):
    """A command in the guest printed more bytes than the caller takes."""


class UntraceableError(GuestError):
    """No ledger can be made. Either the guest's kernel cannot trace block requests, because it was built without the
    options for tracing, or the files of the blocks are not known.
    """

    HINT: ClassVar[str] = (
        "verify needs a kernel with CONFIG_BLK_DEV_IO_TRACE, CONFIG_FTRACE_SYSCALLS and CONFIG_KPROBE_EVENTS"
    )

    def __init__(self, message: str, *, hint: str = HINT, details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint, details=details)


class CloudError(QuickStartError):
    """AWS refused a call, or did not answer. ``code`` is AWS's code of the error, and empty when there was no answer."""

    def __init__(
        self, message: str, *, code: str, hint: str | None = None, details: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.code = code


class DeniedError(CloudError):
    """The account has no permission for a call. ``action`` is the permission, as a policy of IAM names it. ``said`` are
    AWS's own words.
    """

    def __init__(self, action: str, said: str) -> None:
        encrypts = action.startswith("kms:")
        super().__init__(
            f"the account has no permission for {action}",
            code="AccessDenied",
            hint="the account encrypts all snapshots: allow the use of its key in the key's policy"
            if encrypts
            else "`quickstart ami policy` prints a policy with all that is needed (`--machines` for `ami run`)",
            details=(said,) if said else (),
        )
        self.action = action


class UnavailableError(CloudError):
    """AWS did not answer, was busy for too long, or did not complete a thing in time. The same call may succeed later."""


class VolumeError(QuickStartError):
    """The process that serves the root volume ended, gave a wrong answer, or cannot serve the image. This process is
    the volume emulator or the NFS server. ``last_words`` is the last text that the process printed, or empty.
    """

    def __init__(self, message: str, *, last_words: str = "", hint: str | None = None) -> None:
        first, *others = last_words.splitlines() or [""]
        super().__init__(f"{message}: {first}" if first else message, hint=hint, details=others)
        self.last_words = last_words


class MeasurementError(QuickStartError):
    exit_code = 4


class MixedClocksError(MeasurementError):
    pass


class TraceFullError(MeasurementError):
    """The kernel's trace buffer in the guest was full before the guest was ready."""
