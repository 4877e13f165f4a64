"""Run shells in three places (reference image, initramfs, guest), and connect them with the user's terminal."""
