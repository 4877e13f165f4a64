"""Check the text of a profile. If the store already has the image and the traces of the profile, also check the profile
against them. This check starts no guest, and makes no image or trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quickstart.engines import boot as pipeline
from quickstart.engines.boot import TraceOptions
from quickstart.errors import ProfileError, QuickStartError
from quickstart.host.cpulimit import START_SET_LIMIT_S, TooSlowError, cpu_limit
from quickstart.initramfs.build import check_sizes
from quickstart.initramfs.payload import check_kernel
from quickstart.inspect.imageroot import ImageRoot
from quickstart.inspect.unit.model import UnitStart
from quickstart.model import Profile, StartSet
from quickstart.newprofile.make import refusals
from quickstart.profile import load_profile, profile_file
from quickstart.store.store import Store


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A valid profile, and the facts about the profile that follow from the images and traces in the store. ``unit`` is
    None when the store does not have the profile's image. ``start_set`` is None unless the store has the image and all
    traces. ``stages`` lists the steps of a build, each as (step, key of the step's entry in the store, whether the
    store has this entry).
    """

    file: Path
    profile: Profile
    stages: tuple[tuple[str, str, bool], ...]
    unit: UnitStart | None
    start_set: StartSet | None


def check(name: str, options: TraceOptions, store: Store) -> Checked:
    """Check the profile ``name``, which is the name of a profile that comes with QuickStart, or the path of a profile.

    Raises ProfileError with every fault in the profile's text. When the text is valid, raises ProfileError
    with every fault that the image and the traces in the store show.
    """
    file, profile = profile_file(name), load_profile(name)
    units: list[UnitStart] = []
    # Each step has a limit, too, but there are several steps.
    with cpu_limit("the image and the log of its boot", START_SET_LIMIT_S):
        start_set, faults = _looked_at(profile, options, store, units)
    if faults:
        hint = next((each.hint for each in faults if each.hint), None)
        # Both checks report an `include` that matches no file.
        lines = dict.fromkeys(line for each in faults for line in each.lines)
        raise ProfileError(str(file), list(lines), hint=hint)
    plan = pipeline.plan(profile, options, store)
    return Checked(
        file=file, profile=profile, stages=plan.stages, unit=units[0] if units else None, start_set=start_set
    )


def _looked_at(
    profile: Profile, options: TraceOptions, store: Store, units: list[UnitStart]
) -> tuple[StartSet | None, list[QuickStartError]]:
    """Return two values: the profile's start set (or None), and the faults of the profile that the image and the traces
    in the store show. If the profile's unit can be read, the function appends the unit to ``units``.
    """
    image, start_set, faults = None, None, list[QuickStartError]()
    try:
        image, start_set = pipeline.in_store(profile, options, store)
        if start_set is not None:
            check_sizes(profile, start_set)
    except QuickStartError as error:
        faults.append(error)
    if image is not None and not any(isinstance(each, TooSlowError) for each in faults):
        root = ImageRoot(image.tree)
        faults += refusals(root, profile, units.append)
        try:
            check_kernel(root, image.kernel_version, profile.payload)
        except QuickStartError as error:
            faults.append(error)
    return start_set, faults
