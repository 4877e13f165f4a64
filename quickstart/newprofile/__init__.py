"""A profile for any Debian service, out of its unit, one boot that is watched and one that is traced (docs/users/profile.md)."""
