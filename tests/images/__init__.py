"""Disks like those that people already have, made from Debian's packages."""
