"""Start guests. The code here that starts guests on QEMU implements the protocol Launcher of guest.py."""
