"""A small guest of ours that reads a stranger's disk (docs/adr/0026-appliance.md).

Its kernel comes from the store's base image, and its initramfs from the programs of this image. Nothing of the disk is
executed in this guest.
"""
