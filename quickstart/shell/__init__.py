"""Shells at three places (reference image, initramfs, guest): the programs that run there, and the user's terminal."""
