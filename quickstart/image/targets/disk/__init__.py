"""The files with which a disk that has GRUB starts QuickStart's initramfs (docs/adr/0027-own-loader.md).

The scripts `prepare` and `install` run as root in the disk's own system, in a machine that starts no services.
`42_quickstart` is a script that grub-mkconfig runs. Two systemd units run `confirm`, one after a complete boot and one
at a shutdown. `confirm` tells GRUB that this boot has not failed.
"""
