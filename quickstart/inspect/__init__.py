"""The contents of an image root: files, ELF, units, packages."""
