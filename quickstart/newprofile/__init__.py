"""Write a profile for any Debian service, from its unit, from one boot that is watched and from one that is
traced (docs/users/profile.md).
"""
