"""The files with which a disk that has GRUB starts QuickStart's initramfs (docs/adr/0027-own-loader.md).

The scripts `prepare` and `install` run as root in the disk's own system, in a machine that starts no services.
`42_quickstart` is a script that grub-mkconfig runs. Two systemd units run `confirm`, which tells GRUB that a boot with
QuickStart's entry has not failed.
"""
