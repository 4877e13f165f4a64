"""The one door to AWS. Every call has a time limit, is repeated when AWS is busy or does not answer, and fails with a
typed error that says what to do next.

boto3 signs and sends the calls. Its own repetitions are off, because a second layer would multiply the waits. It is
imported only when it is used, because the import takes longer than most verbs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from quickstart import __version__
from quickstart.ec2.refusals import Refusal, is_transient, refused, unanswered, unusable
from quickstart.errors import BadInputError, CloudError, HostLacksError, UnavailableError
from quickstart.host import door
from quickstart.parse.printable import brief

_T = TypeVar("_T")
_CONNECT_S, _READ_S = 10, 30
_FIRST_TRIES = 4
_SERVICES = ("ec2", "ebs", "sts")
_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
# By its own name: an index may have a stranger's package of ours.
_INSTALL = "pip install 'boto3>=1.40,<2'"
# A thousand pages have a million images.
_MOST_PAGES = 1000
# Another refusal after which the same call may succeed later.
Also = Callable[[Refusal], bool]
# Called with time.monotonic_ns() before each try.
Tried = Callable[[int], object]


def _no_other(refusal: Refusal) -> bool:
    return False


def _untold(now_ns: int) -> None:
    pass


@dataclass(frozen=True)
class Patience:
    """How often a call is made until it succeeds. The waits in between are random, up to ``base_s`` doubled with each
    wait, and at most ``most_s`` ("full jitter"; AWS Architecture Blog, "Exponential Backoff And Jitter"). With the
    defaults, a call ends after one and a half to three minutes of waits: for so long, EC2 may not know a new snapshot.
    """

    tries: int = 14
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
    """An account of AWS in one region. ``endpoint`` has the URLs that the calls go to, if they are not AWS's own.
    ``sleep`` waits, and returns a true value when no further call is wanted.
    """

    account: str
    region: str
    endpoint: str
    clients: Mapping[str, Any]
    patience: Patience
    sleep: Callable[[float], object] = time.sleep

    def call(
        self,
        service: str,
        operation: str,
        *,
        also: Also = _no_other,
        tried: Tried = _untold,
        **parameters: object,
    ) -> dict[str, Any]:
        """The answer to a call, for example of the operation ``describe_images`` of the service ``ec2``. After a
        refusal for which ``also`` returns True, the call is repeated, too. ``tried`` is told the time of each try.

        Raises CloudError when AWS refuses the call, or when it is still busy after the last try. Raises BadInputError
        when the credentials are wrong.
        """
        return self._repeated(service, operation, also, parameters, lambda answer: answer, tried)

    def read(
        self,
        service: str,
        operation: str,
        body: str,
        most_bytes: int,
        *,
        also: Also = _no_other,
        **parameters: object,
    ) -> bytes:
        """The bytes of the answer's member ``body``, which comes as a stream. Bytes behind ``most_bytes`` are left out.
        The call is repeated when the stream breaks off. Raises the errors of `call`.
        """

        def taken(answer: dict[str, Any]) -> bytes:
            with answer[body] as stream:
                return bytes(stream.read(most_bytes))

        return self._repeated(service, operation, also, parameters, taken)

    def pages(
        self, service: str, operation: str, member: str, *, also: Also = _no_other, **parameters: Any
    ) -> Iterator[Any]:
        """The items of the list ``member`` in all pages of the answer. Raises the errors of `call`."""
        position: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = self.call(service, operation, also=also, **parameters, **position)
            items = page.get(member, [])
            yield from items if isinstance(items, list) else []
            if not page.get("NextToken"):
                return
            position = {"NextToken": page["NextToken"]}
        raise CloudError(f"the answer to {service}:{operation} has no end", code="")

    def _repeated(
        self,
        service: str,
        operation: str,
        also: Also,
        parameters: Mapping[str, object],
        taken: Callable[[dict[str, Any]], _T],
        tried: Tried = _untold,
    ) -> _T:
        client = self.clients[service]
        _, botocore = libraries()
        errors = botocore.exceptions
        action = f"{client.meta.service_model.signing_name}:{client.meta.method_to_api_mapping[operation]}"
        failed = 0
        while True:
            failed += 1
            is_last = failed >= self.patience.tries
            tried(time.monotonic_ns())
            try:
                return taken(getattr(client, operation)(**parameters))
            except errors.ClientError as error:
                refusal = _refusal(action, error)
                if is_last or not (is_transient(refusal) or also(refusal)):
                    raise refused(refusal, failed) from error
            except (
                errors.HTTPClientError,
                errors.ConnectionError,
                errors.IncompleteReadError,
                botocore.parsers.ResponseParserError,
            ) as error:
                if is_last:
                    raise unanswered(action, str(client.meta.endpoint_url), error) from error
            except errors.BotoCoreError as error:
                raise unusable(error) from error
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                # botocore, about an answer of another form than AWS's.
                kind = type(error).__name__
                raise CloudError(f"the answer to {action} cannot be read ({kind})", code="") from error
            if self.sleep(self.patience.wait_s(failed)):
                raise UnavailableError(f"{action} was given up", code="")

    @property
    def name(self) -> str:
        """What a user has to know before anything is written."""
        where = f", endpoint {self.endpoint}" if self.endpoint else ""
        return f"account {self.account}, region {self.region}{where}"


def _refusal(action: str, error: Any) -> Refusal:
    said, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    return Refusal(
        action=action,
        code=str(said.get("Code", "")),
        message=str(said.get("Message", "")),
        reason=str(error.response.get("Reason", "")),
        status=int(meta.get("HTTPStatusCode", 0)),
    )


def member(answer: Mapping[str, Any], name: str) -> str:
    """The text ``name`` of an answer. Raises CloudError when the answer has none."""
    text = answer.get(name)
    if not isinstance(text, str) or not text:
        raise CloudError(f"the answer of AWS has no {name}", code="")
    return text


def connected(place: Place, connections: int, patience: Patience | None = None) -> Aws:
    """The account to which the user's credentials belong. At most ``connections`` calls run at once.

    Raises BadInputError when the region, the endpoint or the credentials are missing or wrong, and CloudError when AWS
    does not answer.
    """
    boto3, botocore = libraries()
    config = botocore.config.Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=connections,
        user_agent_extra=f"quickstart/{__version__}",
    )
    _settle_home()
    # boto3 itself reads AWS_DEFAULT_REGION only, and all other tools for AWS read AWS_REGION first.
    region = place.region or os.environ.get("AWS_REGION") or None
    try:
        session = boto3.Session(profile_name=place.profile or None, region_name=region)
        if not session.region_name:
            raise BadInputError("no region of AWS is chosen", hint="--region eu-central-1, or set AWS_REGION")
        clients = {
            name: session.client(name, config=config, endpoint_url=place.endpoint or None)
            for name in _SERVICES
        }
        if (credentials := session.get_credentials()) is not None:
            credentials.get_frozen_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise unusable(error) from error
    except ValueError as error:
        raise BadInputError(
            brief(f"the endpoint or the credentials cannot be used: {error}"),
            hint="--endpoint-url http://…, or see ~/.aws/config",
        ) from error
    _check_boto(clients["ec2"], str(boto3.__version__))
    endpoint = _endpoint(str(client.meta.endpoint_url) for client in clients.values())
    patience = patience or Patience()
    # A region or an endpoint that is not there will not be there after a minute.
    first = Aws(
        account="",
        region=session.region_name,
        endpoint=endpoint,
        clients=clients,
        patience=replace(patience, tries=min(_FIRST_TRIES, patience.tries)),
    )
    account = member(first.call("sts", "get_caller_identity"), "Account")
    if not account.isdecimal():
        raise CloudError(f"AWS names the account {brief(account)!r}", code="")
    return replace(first, account=account, patience=patience)


def _settle_home() -> None:
    """Keep boto3 from obeying the files of another user, for example under sudo: ~/.aws/config may name programs."""
    home = door.environment()["HOME"]
    if home != os.environ.get("HOME"):
        os.environ["HOME"] = home


def _endpoint(urls: Iterator[str]) -> str:
    """The URLs that are not AWS's own, with those that are, if there are others. Raises BadInputError for one with a
    password, which would be shown.
    """
    different = list(dict.fromkeys(urls))
    for url in different:
        if "@" in urlsplit(url).netloc:
            raise BadInputError("the endpoint's URL has a user name or password", hint="leave it out")
    if all((urlsplit(url).hostname or "").endswith(_AWS_DOMAINS) for url in different):
        return ""
    return ", ".join(different)


def libraries() -> tuple[Any, Any]:
    """boto3 and botocore. Raises HostLacksError when they are not installed."""
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
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
