"""Read the contents of an image root: files, ELF objects, units, packages."""
