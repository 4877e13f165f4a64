"""Start guests. The class QemuLauncher starts guests in QEMU, and implements the protocol Launcher of guest.py."""
