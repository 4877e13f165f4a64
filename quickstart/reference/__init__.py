"""Make the reference image of a profile: the ordinary root file system and kernel, which are booted, traced
and later shipped.
"""
