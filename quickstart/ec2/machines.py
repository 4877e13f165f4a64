"""Machines (instances) of an account. A machine that QuickStart starts has a tag, by which it is found again, and ends on
every way out of the ``with`` block that has started it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from quickstart.ec2.aws import Aws, member
from quickstart.ec2.images import Waiting
from quickstart.ec2.refusals import Refusal
from quickstart.errors import BadInputError, CloudError, QuickStartError, UnavailableError
from quickstart.host.progress import Progress
from quickstart.parse.printable import brief

RUN_TAG = "quickstart:run"
_ID = re.compile(r"i-[0-9a-f]{8,32}")
_UNKNOWN = "InvalidInstanceID.NotFound"
_UNKNOWN_IMAGE = "InvalidAMIID.NotFound"
_RUNNING, _GONE = "running", ("shutting-down", "terminated", "stopping", "stopped")
# Everything but what is gone for ever.
_COSTS = ("pending", "running", "stopping", "stopped")
# A machine with a public address shows its private one first.
_PUBLIC_WITHIN_S = 15.0
# After Ctrl-C, the user waits.
_BRIEF_TRIES = 2
# When the answer to RunInstances was lost, the machine may be there all the same.
_LOST_TRIES, _LOST_PAUSE_S = 5, 2.0
_CLEANUP = "`quickstart ami cleanup` ends what is left"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The machine that a user wants. Empty texts mean what EC2 takes by default. ``rate_mib_s`` is the rate at which EC2
    initializes the volume, or None. ``run`` names the run that starts the machine.
    """

    image_id: str
    image_name: str
    root_device: str
    type: str
    subnet_id: str = ""
    group_ids: tuple[str, ...] = ()
    key_name: str = ""
    user_data: bytes | None = field(default=None, repr=False)
    rate_mib_s: int | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    def parameters(self) -> Mapping[str, object]:
        """The parameters of RunInstances. The token makes EC2 start one machine only, however often the call is made.
        A machine whose system switches itself off is gone, too. Its metadata needs a session token (IMDSv2).
        """
        tags = [
            {"Key": "Name", "Value": f"quickstart {self.image_name}"},
            {"Key": RUN_TAG, "Value": self.run},
        ]
        optional: dict[str, object] = {
            "SubnetId": self.subnet_id,
            "SecurityGroupIds": list(self.group_ids),
            "KeyName": self.key_name,
            "UserData": self.user_data,
            "BlockDeviceMappings": self._mappings(),
        }
        return {
            "ImageId": self.image_id,
            "InstanceType": self.type,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": f"quickstart-{self.run}",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [{"ResourceType": each, "Tags": tags} for each in ("instance", "volume")],
            **{name: value for name, value in optional.items() if value},
        }

    def _mappings(self) -> list[dict[str, object]]:
        if self.rate_mib_s is None:
            return []
        return [{"DeviceName": self.root_device, "Ebs": {"VolumeInitializationRate": self.rate_mib_s}}]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A machine of an account. ``address`` is its public address or else its private one, and empty if it has none yet.
    ``name`` is its tag Name. ``reason`` says why it is gone.
    """

    id: str
    state: str
    address: str
    has_public_address: bool
    image_id: str
    name: str
    launched: str
    reason: str

    @property
    def row(self) -> str:
        """A line about the machine, for people."""
        return f"{self.id}  {self.state}  {self.launched}  {self.name}"

    @property
    def is_gone(self) -> bool:
        return self.state in _GONE


def _id_of(given: Mapping[str, Any]) -> str:
    identifier = member(given, "InstanceId")
    if not _ID.fullmatch(identifier):
        raise CloudError(f"AWS answers with the id {brief(identifier)!r}", code="")
    return identifier


def _machine(given: Mapping[str, Any]) -> Instance:
    identifier = _id_of(given)
    return Instance(
        id=identifier,
        state=member(given.get("State") or {}, "Name"),
        address=_address(given.get("PublicIpAddress") or given.get("PrivateIpAddress")),
        has_public_address=bool(_address(given.get("PublicIpAddress"))),
        image_id=str(given.get("ImageId", "")),
        name=next(
            (str(tag.get("Value", "")) for tag in given.get("Tags") or () if tag.get("Key") == "Name"), ""
        ),
        launched=str(given.get("LaunchTime", "")),
        reason=str((given.get("StateReason") or {}).get("Message", "")),
    )


def _address(given: object) -> str:
    """``given``, if it is an address of IPv4 or IPv6. The answers of AWS are untrusted."""
    try:
        return str(ip_address(str(given)))
    except ValueError:
        return ""


def _is_unknown(refusal: Refusal) -> bool:
    return refusal.code == _UNKNOWN


def _is_unknown_image(refusal: Refusal) -> bool:
    return refusal.code == _UNKNOWN_IMAGE


def machine(aws: Aws, identifier: str) -> Instance | None:
    """The machine, or None when EC2 does not know it, or not yet."""
    try:
        answer = aws.call("ec2", "describe_instances", InstanceIds=[identifier])
    except CloudError as error:
        if error.code != _UNKNOWN:
            raise
        return None
    rows = [each for row in answer.get("Reservations", ()) for each in row.get("Instances", ())]
    return _machine(rows[0]) if rows else None


def ours(aws: Aws, run: str | None = None) -> tuple[Instance, ...]:
    """The machines that QuickStart has started and that still cost money, or those of one run."""
    filters = [
        {"Name": f"tag:{RUN_TAG}", "Values": [run or "*"]},
        {"Name": "instance-state-name", "Values": list(_COSTS)},
    ]
    rows = aws.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    found = [_machine(each) for row in rows for each in row.get("Instances", ())]
    return tuple(sorted(found, key=lambda each: each.id))


def terminate(aws: Aws, identifiers: Sequence[str]) -> None:
    """End machines for ever. EC2 may not know a new machine yet, and one that is gone is no error.

    Raises CloudError when a machine may go on. Each machine has a call of its own: EC2 ends none of a call in which one
    is unknown.
    """
    for identifier in identifiers:
        try:
            aws.call("ec2", "terminate_instances", also=_is_unknown, InstanceIds=[identifier])
        except CloudError as error:
            if error.code != _UNKNOWN:
                raise
            found = machine(aws, identifier)
            if found is not None and found.state in _COSTS:
                raise


def console(aws: Aws, identifier: str) -> str:
    """The newest 64 KiB of the machine's console, as EC2 has them. Untrusted."""
    answer = aws.call("ec2", "get_console_output", also=_is_unknown, InstanceId=identifier, Latest=True)
    return str(answer.get("Output", ""))


@contextmanager
def launched(
    aws: Aws, wanted: Wanted, progress: Progress, tried: Callable[[int], object] = lambda now_ns: None
) -> Iterator[str]:
    """Start a machine, and end it when the ``with`` block ends, whatever ends it. The result is the machine's id.
    ``tried`` is told the time of each try to start it, in ns of time.monotonic_ns.

    Raises CloudError when AWS refuses the call. When the machine may be left, a note says how to end it.
    """
    tries = 0

    def counted(now_ns: int) -> None:
        nonlocal tries
        tries += 1
        tried(now_ns)

    try:
        answer = aws.call(
            "ec2", "run_instances", also=_is_unknown_image, tried=counted, **wanted.parameters()
        )
        identifier = _id_of((answer.get("Instances") or [{}])[0])
    except BaseException as error:
        # Only a first try that EC2 itself has refused has certainly started nothing. Without an answer, there is no code.
        is_refused = isinstance(error, BadInputError) or (isinstance(error, CloudError) and bool(error.code))
        if tries > 1 or not is_refused:
            _end_lost(aws, wanted, progress)
        raise
    try:
        yield identifier
    finally:
        _end(aws, identifier, progress)


def _end(aws: Aws, identifier: str, progress: Progress) -> None:
    """End a machine. After a Ctrl-C meanwhile, the machine is ended all the same. After another one, or when AWS refuses,
    a note says that the machine may still run.
    """
    is_ended = False
    try:
        try:
            terminate(aws, [identifier])
        except KeyboardInterrupt:
            progress.note(f"ending {identifier}")
            terminate(replace(aws, patience=replace(aws.patience, tries=_BRIEF_TRIES)), [identifier])
            is_ended = True
            raise
        is_ended = True
    finally:
        if not is_ended:
            progress.note(f"{identifier} may still run: {_CLEANUP}")


def _end_lost(aws: Aws, wanted: Wanted, progress: Progress) -> None:
    """End the machine of a call whose answer was lost, if there is one."""
    is_ended = False
    try:
        for _ in range(_LOST_TRIES):
            if lost := ours(aws, wanted.run):
                terminate(aws, [each.id for each in lost])
                is_ended = True
                return
            aws.sleep(_LOST_PAUSE_S)
    except QuickStartError:
        # The first error is the one that counts.
        pass
    finally:
        # Also after another Ctrl-C.
        if not is_ended:
            progress.note(f"a machine of the run {wanted.run} may have started: {_CLEANUP}")


def wait_for_start(aws: Aws, identifier: str, waiting: Waiting) -> Instance:
    """Wait until the machine has an address: its public one, or its private one if it runs for 15 s without a public one.
    Raises CloudError when it is gone, and UnavailableError when it takes too long.
    """
    began_s = waiting.now()
    running_s: float | None = None
    while True:
        found = machine(aws, identifier)
        now_s = waiting.now()
        waited_s = now_s - began_s
        if found is not None and found.state in _GONE:
            raise CloudError(f"{identifier} is {found.state}: {brief(found.reason)}", code="")
        if found is not None and found.has_public_address:
            return found
        if found is not None and found.address and found.state == _RUNNING:
            running_s = now_s if running_s is None else running_s
            if now_s - running_s >= _PUBLIC_WITHIN_S:
                return found
        if found is None and waited_s >= waiting.unknown_s:
            raise CloudError(f"the account has no {identifier}", code="")
        if waited_s >= waiting.limit_s:
            state = found.state if found else "unknown"
            raise UnavailableError(
                f"{identifier} is still {state} after {waiting.limit_s:.0f} s",
                code="",
                hint="try again later",
            )
        aws.sleep(waiting.poll_s)
