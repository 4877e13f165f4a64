"""Check who sends a request (AWS General Reference, "Signature Version 4")."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote

from quickstart.ec2.emulator.ebs import Request
from quickstart.ec2.emulator.faults import ApiError

# The user's session that has expired, for tests of clients.
EXPIRED_KEY_ID = "ASIAEMULATOREXPIRED0"
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([A-Z0-9]{16,128})/([0-9]{8})/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request, "
    r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class Key:
    """The access key that an emulator takes. Each emulator has its own, because the disks that it serves have the secrets
    of their owner.
    """

    id: str = field(default_factory=lambda: f"AKIA{secrets.token_hex(8).upper()}")
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(30), repr=False)


def check(request: Request, key: Key, region: str, is_ebs: bool) -> None:
    """Raise ApiError when the request is not signed with ``key`` for ``region``."""
    match = _HEADER.fullmatch(request.headers.get("authorization", ""))
    if match is None:
        raise ApiError("MissingAuthenticationToken", "Request is missing Authentication Token", 403)
    key_id, day, scope, service, names, signature = match.groups()
    if key_id == EXPIRED_KEY_ID:
        raise _fault(is_ebs, "ExpiredTokenException", "RequestExpired", "The security token has expired.")
    if key_id != key.id:
        raise _fault(is_ebs, "UnrecognizedClientException", "AuthFailure", "The access key does not exist.")
    if scope != region:
        raise _fault(
            is_ebs, "InvalidSignatureException", "AuthFailure", f"Credential should be scoped to {region}."
        )
    payload = request.headers.get("x-amz-content-sha256") or hashlib.sha256(request.body).hexdigest()
    headers = "".join(f"{name}:{_value(request, name)}\n" for name in names.split(";"))
    query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in sorted(request.query.items())
    )
    text = "\n".join((request.method, quote(request.path, safe="/-_.~"), query, headers, names, payload))
    place = f"{day}/{scope}/{service}/aws4_request"
    stamp = request.headers.get("x-amz-date", "")
    signed = "\n".join(("AWS4-HMAC-SHA256", stamp, place, hashlib.sha256(text.encode()).hexdigest()))
    secret = f"AWS4{key.secret}".encode()
    for word in (day, scope, service, "aws4_request", signed):
        secret = hmac.digest(secret, word.encode(), "sha256")
    if not hmac.compare_digest(secret.hex(), signature):
        raise _fault(
            is_ebs, "InvalidSignatureException", "SignatureDoesNotMatch", "The signature does not match."
        )


def _value(request: Request, name: str) -> str:
    return " ".join(request.headers.get(name, "").split())


def _fault(is_ebs: bool, of_ebs: str, of_ec2: str, message: str) -> ApiError:
    return ApiError(of_ebs if is_ebs else of_ec2, message, 403)
