"""Write a profile for any Debian service. The profile's values come from three sources: the service's unit, a boot that
QuickStart watches, and a boot that QuickStart traces (docs/users/profile.md).
"""
