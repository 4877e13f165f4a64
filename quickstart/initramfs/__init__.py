"""start set → initramfs: our own newc writer, the closure of kernel modules, the archive's layout, the
programs in the guest.
"""
