"""The files with which the boot loader of a disk starts QuickStart's initramfs (docs/adr/0027-own-loader.md).

The scripts `prepare` and `install` run as root in the disk's own system, in a machine that starts no services.
`42_quickstart` is a script that grub-mkconfig runs. `systemd-boot` counts the tries of our entry in systemd-boot's menu.
Two systemd units run `confirm`, one after a complete boot and one at a shutdown. `confirm` tells the boot loader that
this boot has not failed.
"""
