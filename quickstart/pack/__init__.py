"""Compute the start set from traces and an image, and pack it into an initramfs."""
