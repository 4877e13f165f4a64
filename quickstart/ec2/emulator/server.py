"""Serve the emulator over HTTP, on the loopback interface of this host only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from werkzeug.datastructures import Headers
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request as WebRequest
from werkzeug.wrappers import Response

from quickstart.ec2.emulator import ebs, images, instances, signature, wire
from quickstart.ec2.emulator.account import ACCOUNT_ID, Account
from quickstart.ec2.emulator.ebs import Answer, Request
from quickstart.ec2.emulator.faults import ApiError, Trouble, denied
from quickstart.ec2.emulator.fleet import Fleet
from quickstart.ec2.emulator.hardware import Hypervisor

_MOST_BODY_BYTES = 1 << 20
# What a new account of Amazon's may have at once.
_MOST_VCPUS = 32
# To give tags to a new thing is a permission of its own (Amazon EC2 User Guide, "Grant permission to tag resources").
_TAGGING = "ec2:CreateTags"
_ARN = f"arn:aws:iam::{ACCOUNT_ID}:user/emulator"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the emulator answers. ``policy`` is a policy document of IAM for the only user, or None. ``hypervisor`` starts
    machines; without one, RunInstances is refused. All machines together have at most ``most_vcpus``.
    """

    directory: Path
    region: str = "eu-central-1"
    key: signature.Key = field(default_factory=signature.Key)
    trouble: Trouble = field(default_factory=Trouble)
    policy: Mapping[str, object] | None = None
    port: int = 0
    hypervisor: Hypervisor | None = None
    most_vcpus: int = _MOST_VCPUS


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """A running emulator. ``calls`` counts the calls of each action that were not refused."""

    url: str
    account: Account
    fleet: Fleet
    calls: dict[str, int]
    key: signature.Key


@contextmanager
def serving(settings: Settings) -> Iterator[Emulator]:
    """A context manager that serves the emulator during the ``with`` block."""
    account = Account(settings.directory, settings.region, settings.trouble)
    fleet = Fleet(account, settings.hypervisor, settings.most_vcpus)
    calls: dict[str, int] = {}

    def application(environ: dict[str, object], start: object) -> object:
        web = WebRequest(environ)
        if "Transfer-Encoding" in web.headers or (web.content_length or 0) > _MOST_BODY_BYTES:
            # The body is not read, so the connection cannot be used again.
            return Response(b"", 411, {"Connection": "close"})(environ, start)  # type: ignore[arg-type]
        answer = answered(settings, fleet, _request(web), calls)
        return Response(answer.body, answer.status, Headers(dict(answer.headers)))(environ, start)  # type: ignore[arg-type]

    server = make_server("127.0.0.1", settings.port, application, threaded=True, request_handler=_Handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, name="ec2emulator", daemon=True)
    thread.start()
    try:
        yield Emulator(
            url=f"http://127.0.0.1:{server.server_port}",
            account=account,
            fleet=fleet,
            calls=calls,
            key=settings.key,
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        fleet.close()


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: object) -> None:
        """Say nothing: a line for each of a thousand blocks helps nobody."""


def _request(web: WebRequest) -> Request:
    return Request(
        method=web.method,
        path=web.path,
        query=dict(web.args.items()),
        headers={key.lower(): value for key, value in web.headers.items()},
        body=web.get_data(),
    )


def answered(settings: Settings, fleet: Fleet, request: Request, calls: dict[str, int]) -> Answer:
    """The answer to a request, which may be an error."""
    account = fleet.account
    found = ebs.action_of(request)
    is_ebs = found is not None
    try:
        signature.check(request, settings.key, settings.region, is_ebs)
        if (fault := settings.trouble.fault(account.drawn(), is_ebs)) is not None:
            raise fault
        if found is None:
            return _query(settings, fleet, request, calls)
        action, words = found
        _check_permission(settings, f"ebs:{action}")
        if action == "StartSnapshot" and b'"Tags"' in request.body:
            _check_permission(settings, _TAGGING)
        answer = ebs.answer(account, request, action, words)
        calls[action] = calls.get(action, 0) + 1
        return Answer(answer.status, answer.body, {"Content-Type": "application/json", **answer.headers})
    except ApiError as refusal:
        return _refusal(refusal, is_ebs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        # For example, the host's disk is full.
        name = "InternalServerException" if is_ebs else "InternalError"
        return _refusal(ApiError(name, f"{type(error).__name__}: {error}", 500), is_ebs)


def _check_permission(settings: Settings, action: str) -> None:
    if denied(settings.policy, action):
        if action.startswith("ebs:"):
            raise ApiError(
                "AccessDeniedException", f"not authorized to perform: {action}", 403, "UNAUTHORIZED_ACCOUNT"
            )
        raise ApiError(
            "UnauthorizedOperation",
            f"You are not authorized to perform this operation. User: {_ARN} is not authorized to perform: {action} "
            "because no identity-based policy allows the action",
            403,
        )


def _query(settings: Settings, fleet: Fleet, request: Request, calls: dict[str, int]) -> Answer:
    form = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
    action = form.get("Action", "")
    if action == "GetCallerIdentity":
        return Answer(200, _identity(), {"Content-Type": "text/xml"})
    given = wire.parameters(form)
    _check_permission(settings, f"ec2:{action}")
    if given.get("TagSpecifications"):
        _check_permission(settings, _TAGGING)
    if given.get("DryRun"):
        raise ApiError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
    with fleet.account.lock:
        if action in images.ACTIONS:
            result = images.ACTIONS[action](fleet.account, given)
        elif action in instances.ACTIONS:
            result = instances.ACTIONS[action](fleet, given)
        else:
            raise ApiError("UnsupportedOperation", f"The emulator has no {action}.")
    calls[action] = calls.get(action, 0) + 1
    return Answer(200, wire.answer_xml(action, result), {"Content-Type": "text/xml"})


def _identity() -> bytes:
    return (
        f'<GetCallerIdentityResponse xmlns="{_STS}"><GetCallerIdentityResult><Arn>{_ARN}</Arn>'
        f"<UserId>AIDAEMULATOR</UserId><Account>{ACCOUNT_ID}</Account></GetCallerIdentityResult>"
        "<ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
    ).encode()


def _refusal(fault: ApiError, is_ebs: bool) -> Answer:
    if not is_ebs:
        return Answer(fault.status, wire.fault_xml(fault), {"Content-Type": "text/xml"})
    document = {"Message": fault.message, "Reason": fault.reason}
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": fault.code}
    return Answer(fault.status, json.dumps(document).encode(), headers)
