"""Compute the start set, which is the set of files that an application needs to become ready, and pack it into an
initramfs.
"""
