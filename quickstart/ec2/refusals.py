"""What AWS says when it does not do what it is asked, as typed errors (Amazon EC2 API Reference, "Error codes"; EBS
direct APIs, "Errors"). All functions are pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quickstart.errors import BadInputError, CloudError, DeniedError, QuickStartError, UnavailableError
from quickstart.parse.printable import brief

_BUSY = frozenset(
    (
        *("RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "SlowDown"),
        *("RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException"),
        *("ConcurrentLimitExceededException", "ServiceUnavailable", "Unavailable", "InternalError"),
        *("InternalFailure", "InternalServerException", "RequestTimeout", "WRITE_REQUEST_TIMEOUT"),
    )
)
_DENIED = frozenset(("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"))
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
_UNKNOWN = frozenset(
    (
        *("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"),
        *("InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken"),
    )
)
_QUOTA = ("LimitExceeded", "ServiceQuotaExceeded", "QuotaExceeded")
_MISSING = re.compile(r"not authorized to perform: ([a-z0-9-]{1,40}:[A-Za-z]{1,80})\b")
_SERVER_ERROR = 500
_CREDENTIALS_HINT = "renew them, for example with `aws sso login`, or choose others with --aws-profile"


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The error that AWS answered. ``action`` is the permission that the call needs, for example ec2:RegisterImage, and
    ``status`` the status of HTTP. The EBS direct APIs give a ``reason`` as well.
    """

    action: str
    code: str
    message: str
    status: int
    reason: str = ""


def is_transient(refusal: Refusal) -> bool:
    """Whether the same call may succeed later."""
    return refusal.code in _BUSY or refusal.reason in _BUSY or refusal.status >= _SERVER_ERROR


def refused(refusal: Refusal, tries: int) -> QuickStartError:
    """The error for ``refusal``, after ``tries`` tries. The words of AWS are untrusted, and one line."""
    code, said = refusal.code, brief(refusal.message)
    if code in _DENIED:
        # A call may need more than one permission.
        named = _MISSING.search(refusal.message)
        return DeniedError(named[1] if named else refusal.action, said)
    if code in _EXPIRED:
        return BadInputError("the credentials for AWS have expired", hint=_CREDENTIALS_HINT)
    if code in _UNKNOWN:
        return BadInputError(f"AWS does not know the credentials ({code})", hint=_CREDENTIALS_HINT)
    if is_transient(refusal):
        return UnavailableError(
            f"AWS is too busy: {refusal.action} failed {tries} times, the last time with {code}",
            code=code,
            hint="try again later",
        )
    if any(word in code for word in _QUOTA):
        return CloudError(
            f"a quota of the account is used up ({code}): {said}",
            code=code,
            hint="ask for more in the console of AWS (Service Quotas), or delete what is not needed",
        )
    return CloudError(f"AWS refuses {refusal.action} ({code}): {said}", code=code)


def unanswered(action: str, url: str, error: Exception) -> UnavailableError:
    """The error for a call that AWS has not answered."""
    return UnavailableError(
        f"{action} got no answer from {brief(url)} ({type(error).__name__})",
        code="",
        hint="check the region, the endpoint and the network",
    )


def unusable(error: Exception) -> QuickStartError:
    """The error for a call that boto3 could not even send. ``error`` is one of botocore's."""
    kind = type(error).__name__
    if kind == "ParamValidationError":
        raise AssertionError("a call has wrong parameters") from error
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return BadInputError(
            "there are no credentials for AWS, or only a part of them",
            hint="`aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if kind == "ProfileNotFound":
        return BadInputError(str(error), hint="see ~/.aws/config, or choose another --aws-profile")
    if kind == "NoRegionError":
        return BadInputError("no region of AWS is chosen", hint="--region eu-central-1, or set AWS_REGION")
    return BadInputError(brief(f"{kind}: {error}"), hint="see ~/.aws/config")
