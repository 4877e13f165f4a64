"""Make an initramfs from a start set: the newc writer, the selection of kernel modules, the layout of part A
and part B, and the programs that run in the guest.
"""
