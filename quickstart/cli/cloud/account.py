"""What the verbs for EC2 have in common: which AWS is meant, and an image in it."""

from __future__ import annotations

from collections.abc import Callable

import click

from quickstart.ec2 import images
from quickstart.ec2.aws import Aws
from quickstart.errors import BadInputError


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
