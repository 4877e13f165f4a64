"""Errors that EC2 answers, and errors that the emulator answers on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class ApiError(Exception):
    """An error that a client gets. ``reason`` is a member of the errors of the EBS direct APIs."""

    def __init__(self, code: str, message: str, status: int = 400, reason: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """How often calls fail without a fault of the client, as shares from 0 to 1, and how long a new thing stays unknown.
    The same ``seed`` gives the same failures in the same order of calls.
    """

    throttled: float = 0.0
    unavailable: float = 0.0
    unknown_for_s: float = 0.0
    pending_for_s: float = 0.0
    seed: int = 1

    def fault(self, drawn: float, is_ebs: bool) -> ApiError | None:
        """The fault of a call, or None. ``drawn`` is a random number from 0 to 1."""
        if drawn < self.throttled:
            if is_ebs:
                return ApiError("RequestThrottledException", "slow down", 400, "ACCOUNT_THROTTLED")
            return ApiError("RequestLimitExceeded", "Request limit exceeded.", 503)
        if drawn < self.throttled + self.unavailable:
            name = "InternalServerException" if is_ebs else "Unavailable"
            return ApiError(name, "The service is unavailable.", 503)
        return None


def denied(policy: Mapping[str, object] | None, action: str) -> bool:
    """Whether ``policy``, a policy document of IAM, does not allow ``action``. Without a policy, everything is allowed.
    The emulator looks at actions only, and not at resources and conditions.
    """
    if policy is None:
        return False
    statements = policy.get("Statement", ())
    if isinstance(statements, Mapping):
        statements = (statements,)
    allowed = False
    for statement in statements if isinstance(statements, list | tuple) else ():
        if isinstance(statement, Mapping) and _matches(statement.get("Action", ()), action):
            if statement.get("Effect") == "Deny":
                return True
            allowed = True
    return not allowed


def _matches(patterns: object, action: str) -> bool:
    words = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(words, list | tuple):
        return False
    return any(
        action.lower().startswith(word[:-1].lower()) if word.endswith("*") else action.lower() == word.lower()
        for word in words
        if isinstance(word, str)
    )
