"""The files that make a disk with GRUB start QuickStart's initramfs (docs/adr/0027-own-loader.md).

`prepare` and `install` run as root in the disk's own system, in a machine without services. `42_quickstart` is a script
of grub-mkconfig, `confirm` and its unit tell GRUB that a boot has come to its end.
"""
