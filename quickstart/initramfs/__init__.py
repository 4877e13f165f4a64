"""Make an initramfs from a start set: the newc writer, the kernel modules with what they require, the
archive's layout, and the programs in the guest.
"""
