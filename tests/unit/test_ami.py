"""The boot mode of an AMI, the waits between calls, and AWS's errors."""

from __future__ import annotations

import pytest

from quickstart.ec2.aws import Patience
from quickstart.ec2.disk import boot_mode_of
from quickstart.ec2.images import check_name
from quickstart.ec2.refusals import Refusal, is_transient, refused
from quickstart.errors import BadInputError, CloudError, DeniedError, UnavailableError
from quickstart.model.disk import Loader
from quickstart.model.words import BootMode

BOTH = (Loader.GRUB_BIOS, Loader.GRUB_UEFI)


@pytest.mark.parametrize(
    ("loaders", "asked", "mode"),
    [
        (BOTH, None, BootMode.UEFI_PREFERRED),
        (BOTH, BootMode.LEGACY_BIOS, BootMode.LEGACY_BIOS),
        (BOTH, BootMode.UEFI, BootMode.UEFI),
        ((Loader.GRUB_BIOS,), None, BootMode.LEGACY_BIOS),
        ((Loader.SYSTEMD_BOOT,), None, BootMode.UEFI),
        ((Loader.UKI,), BootMode.UEFI, BootMode.UEFI),
    ],
)
def test_the_boot_mode(loaders: tuple[Loader, ...], asked: BootMode | None, mode: BootMode) -> None:
    assert boot_mode_of(loaders, asked) is mode


@pytest.mark.parametrize(
    ("loaders", "asked", "hint"),
    [
        ((Loader.SYSTEMD_BOOT,), BootMode.LEGACY_BIOS, "--boot-mode uefi"),
        ((Loader.SYSTEMD_BOOT,), BootMode.UEFI_PREFERRED, "--boot-mode uefi"),
        ((Loader.GRUB_BIOS,), BootMode.UEFI, "--boot-mode legacy-bios"),
        ((), None, "quickstart inspect"),
    ],
)
def test_a_boot_mode_that_the_disk_cannot_have(
    loaders: tuple[Loader, ...], asked: BootMode | None, hint: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        boot_mode_of(loaders, asked)
    assert hint in (caught.value.hint or "")


def test_the_waits_grow_up_to_a_limit() -> None:
    patience = Patience(tries=9, base_s=0.5, most_s=4.0)
    for failed, longest_s in ((1, 1.0), (2, 2.0), (3, 4.0), (8, 4.0)):
        waits = [patience.wait_s(failed) for _ in range(200)]
        assert 0 <= min(waits) <= max(waits) <= longest_s
        assert max(waits) > longest_s / 2


@pytest.mark.parametrize("name", ["ab", "a" * 129, "a\nb", "a*b", "a b?", "", "ä" * 5])
def test_what_no_image_can_be_called(name: str) -> None:
    with pytest.raises(BadInputError):
        check_name(name)


def refusal(code: str, status: int = 400, message: str = "words", reason: str = "") -> Refusal:
    return Refusal(action="ec2:RegisterImage", code=code, message=message, status=status, reason=reason)


@pytest.mark.parametrize(
    ("given", "kind", "is_passing"),
    [
        (refusal("RequestLimitExceeded", 503), UnavailableError, True),
        (refusal("SomethingNew", 500), UnavailableError, True),
        (refusal("ValidationException", reason="WRITE_REQUEST_TIMEOUT"), UnavailableError, True),
        (refusal("ValidationException", reason="INVALID_BLOCK"), CloudError, False),
        (refusal("UnauthorizedOperation", 403), DeniedError, False),
        (refusal("AccessDeniedException", 403), DeniedError, False),
        (refusal("SnapshotLimitExceeded"), CloudError, False),
        (refusal("ServiceQuotaExceededException", 402), CloudError, False),
        (refusal("ExpiredTokenException", 403), BadInputError, False),
        (refusal("InvalidClientTokenId", 403), BadInputError, False),
    ],
)
def test_refusals(given: Refusal, kind: type[Exception], is_passing: bool) -> None:
    assert is_transient(given) is is_passing
    assert type(refused(given, 9)) is kind


def test_the_missing_permission_may_be_another_one() -> None:
    said = (
        "User: arn:aws:iam::1:user/x is not authorized to perform: ec2:CreateTags on resource: y because of z"
    )
    error = refused(refusal("UnauthorizedOperation", 403, said), 1)
    assert isinstance(error, DeniedError)
    assert error.action == "ec2:CreateTags"


def test_words_of_aws_are_one_line() -> None:
    error = refused(refusal("Odd", message="a\nb\x1b[2J" + "c" * 10_000), 1)
    assert "\n" not in error.message
    assert "\x1b" not in error.message
    assert len(error.message) < 1000
