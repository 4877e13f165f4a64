"""Write a profile for any Debian service. The profile's values come from the service's unit, from a boot that is
watched, and from a boot that is traced (docs/users/profile.md).
"""
