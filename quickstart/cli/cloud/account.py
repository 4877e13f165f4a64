"""What the verbs for EC2 have in common: which AWS is meant, an image in it, the options of a machine, and the question
before something is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from quickstart.cli.output import Verb, say
from quickstart.ec2 import images
from quickstart.ec2.aws import Aws
from quickstart.errors import BadInputError
from quickstart.host.beneath import read_bounded
from quickstart.parse.printable import in_full

# Amazon EBS User Guide, "Use an Amazon EBS provisioned rate for volume initialization".
_LEAST_RATE_MIB_S, _MOST_RATE_MIB_S = 100, 300
# Amazon EC2 User Guide, "Run commands when you launch an EC2 instance with user data input".
_USER_DATA_BYTES = 16 * 1024


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which AWS is meant."""
    for option in (
        click.option(
            "--endpoint-url", default="", metavar="URL", help="The URL of EC2, EBS and STS [AWS's own]."
        ),
        click.option(
            "--aws-profile", default="", metavar="NAME", help="The profile in ~/.aws [AWS_PROFILE]."
        ),
        click.option(
            "--region", default="", metavar="REGION", help="The region [AWS_REGION, or the profile's]."
        ),
    ):
        command = option(command)
    return command


def image_of_ours(aws: Aws, name: str) -> images.Image:
    """The image ``name``. Raises BadInputError when the account has none of this name that QuickStart has made."""
    images.check_name(name)
    image = images.named(aws, name)
    if image is None or not image.manifest_sha256:
        raise BadInputError(
            f"QuickStart has made no image {name} in {aws.name}", hint="`quickstart ami list`"
        )
    return image


def machine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a machine is started."""
    for option in (
        click.option(
            "--initialization-rate",
            "rate_mib_s",
            type=click.IntRange(_LEAST_RATE_MIB_S, _MOST_RATE_MIB_S),
            metavar="MIB_S",
            help="EC2: let AWS read the whole volume from its snapshot at this rate, in MiB/s. It costs money for each GiB, "
            "and takes the place of fast snapshot restore [no rate: blocks are read when the machine needs them].",
        ),
        click.option(
            "--user-data",
            "user_data_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="EC2: data for cloud-init. A machine with data that the profile does not name boots the stock way the first "
            "time [none].",
        ),
        click.option("--key-name", default="", metavar="NAME", help="EC2: a key pair, for SSH [none]."),
        click.option(
            "--security-group",
            "security_groups",
            multiple=True,
            metavar="ID",
            help="EC2: a security group. One of them has to let this host reach the application's port [the network's "
            "default, which lets nobody in].",
        ),
        click.option("--subnet", default="", metavar="ID", help="EC2: the subnet [the default one]."),
    ):
        command = option(command)
    return command


def user_data_of(path: Path | None) -> bytes | None:
    """The user data in the file ``path``. Raises BadInputError when EC2 would not take it."""
    if path is None:
        return None
    data = read_bounded(path.absolute(), _USER_DATA_BYTES)
    if not data:
        raise BadInputError(f"{path} is empty", hint="leave --user-data out")
    return data


def confirm(verb: Verb, aws: Aws, doomed: Iterable[str], yes: bool) -> None:
    """Show the account and what will be removed, a line for each thing, and ask. Raises BadInputError when the user does
    not agree, or cannot be asked.
    """
    say(verb.console, aws.name)
    for line in doomed:
        say(verb.console, in_full(line))
    if not yes and not (sys.stdin.isatty() and click.confirm("Remove these?", err=True)):
        raise BadInputError("nothing was removed", hint="--yes removes them without a question")
