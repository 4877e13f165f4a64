"""start set → initramfs: our own newc writer, the kernel-module closure, the archive's layout, what runs in the guest."""
