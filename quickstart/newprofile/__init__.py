"""Write a profile for any Debian service, from its unit, from a boot that is watched, and from a boot that is
traced (docs/users/profile.md).
"""
