"""The one door to AWS. Every call has a time limit, is repeated when AWS is busy or does not answer, and fails with a
typed error that says what to do next.

boto3 signs and sends the calls. Its own repetitions are off, because a second layer would multiply the waits. It is
imported only when it is used, because the import takes longer than most verbs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quickstart import __version__
from quickstart.ec2.refusals import Refusal, is_transient, refused, unanswered, unusable
from quickstart.errors import BadInputError, HostLacksError

_CONNECT_S, _READ_S = 10, 30
_FIRST_TRIES = 4
_SERVICES = ("ec2", "ebs", "sts")
_INSTALL = "pip install --upgrade 'quickstart-boot[ec2]'"


@dataclass(frozen=True)
class Patience:
    """How often a call is made until it succeeds. The waits in between are random, up to ``base_s`` doubled with each
    wait, and at most ``most_s`` ("full jitter"; AWS Architecture Blog, "Exponential Backoff And Jitter").
    """

    tries: int = 9
    base_s: float = 0.4
    most_s: float = 20.0

    def wait_s(self, failed: int) -> float:
        """How long to wait after the failed try number ``failed``, which counts from 1."""
        longest_s = min(self.most_s, self.base_s * 2.0**failed)
        return secrets.SystemRandom().uniform(0.0, longest_s)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which AWS a user means. An empty string means what every AWS tool takes then: the environment, and the files in
    ~/.aws.
    """

    region: str = ""
    profile: str = ""
    endpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class Aws:
    """An account of AWS in one region. ``endpoint`` is the URL that the calls go to, if it is not AWS's own."""

    account: str
    region: str
    endpoint: str
    clients: Mapping[str, Any]
    patience: Patience
    sleep: Callable[[float], None] = time.sleep

    def call(self, service: str, operation: str, **parameters: object) -> dict[str, Any]:
        """The answer to a call, for example of the operation ``describe_images`` of the service ``ec2``.

        Raises CloudError when AWS refuses the call, or when it is still busy after the last try. Raises BadInputError
        when the credentials are wrong.
        """
        return _call(self.clients[service], operation, self.patience, self.sleep, parameters)

    def read(self, service: str, operation: str, body: str, most_bytes: int, **parameters: object) -> bytes:
        """The bytes of the answer's member ``body``, which comes as a stream. Bytes behind ``most_bytes`` are left out.
        The call is repeated when the stream breaks off. Raises the errors of `call`.
        """

        def taken(answer: dict[str, Any]) -> dict[str, Any]:
            with answer[body] as stream:
                return {body: stream.read(most_bytes)}

        client = self.clients[service]
        data: bytes = _call(client, operation, self.patience, self.sleep, parameters, taken)[body]
        return data

    @property
    def name(self) -> str:
        """What a user has to know before anything is written."""
        where = f", endpoint {self.endpoint}" if self.endpoint else ""
        return f"account {self.account}, region {self.region}{where}"


def connected(place: Place, connections: int, patience: Patience | None = None) -> Aws:
    """The account to which the user's credentials belong. At most ``connections`` calls run at once.

    Raises BadInputError when the region or the credentials are missing or wrong, and CloudError when AWS does not
    answer.
    """
    boto3, botocore = _libraries()
    patience = patience or Patience()
    config = botocore.config.Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=connections,
        user_agent_extra=f"quickstart/{__version__}",
    )
    try:
        # boto3 itself reads AWS_DEFAULT_REGION only, and all other tools for AWS read AWS_REGION first.
        region = place.region or os.environ.get("AWS_REGION") or None
        session = boto3.Session(profile_name=place.profile or None, region_name=region)
        if not session.region_name:
            raise BadInputError("no region of AWS is chosen", hint="--region eu-central-1, or set AWS_REGION")
        clients = {
            name: session.client(name, config=config, endpoint_url=place.endpoint or None)
            for name in _SERVICES
        }
    except botocore.exceptions.BotoCoreError as error:
        raise unusable(error) from error
    _check_boto(clients["ec2"], str(boto3.__version__))
    # A region or an endpoint that is not there will not be there after a minute.
    first = replace(patience, tries=min(_FIRST_TRIES, patience.tries))
    identity = _call(clients["sts"], "get_caller_identity", first, time.sleep, {})
    url = str(clients["ec2"].meta.endpoint_url)
    return Aws(
        account=str(identity["Account"]),
        region=session.region_name,
        endpoint="" if ".amazonaws.com" in url else url,
        clients=clients,
        patience=patience,
    )


def _libraries() -> tuple[Any, Any]:
    """boto3 and botocore. Raises HostLacksError when they are not installed."""
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
    except ImportError as error:
        raise HostLacksError("boto3 is not installed", hint=_INSTALL) from error
    return boto3, botocore


def _check_boto(client: Any, version: str) -> None:
    """Raise HostLacksError for a boto3 that ignores AWS_ENDPOINT_URL, and would call AWS in place of an emulator, or
    that does not know how to initialize a volume at a given rate.
    """
    members = client.meta.service_model.shape_for("EbsBlockDevice").members
    if "VolumeInitializationRate" not in members:
        raise HostLacksError(f"boto3 {version} is too old", hint=_INSTALL)


def _call(
    client: Any,
    operation: str,
    patience: Patience,
    sleep: Callable[[float], None],
    parameters: Mapping[str, object],
    taken: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer,
) -> dict[str, Any]:
    _, botocore = _libraries()
    errors = botocore.exceptions
    name = str(client.meta.method_to_api_mapping[operation])
    service = str(client.meta.service_model.signing_name)
    failed = 0
    while True:
        try:
            return taken(getattr(client, operation)(**parameters))
        except errors.ClientError as error:
            refusal = Refusal(
                action=f"{service}:{name}",
                code=str(error.response.get("Error", {}).get("Code", "")),
                message=str(error.response.get("Error", {}).get("Message", "")),
                reason=str(error.response.get("Reason", "")),
                status=int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
            )
            failed += 1
            if not is_transient(refusal) or failed == patience.tries:
                raise refused(refusal, failed) from error
        except (errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError) as error:
            failed += 1
            if failed == patience.tries:
                raise unanswered(f"{service}:{name}", str(client.meta.endpoint_url), error) from error
        except botocore.exceptions.BotoCoreError as error:
            raise unusable(error) from error
        sleep(patience.wait_s(failed))
