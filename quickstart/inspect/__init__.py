"""What is inside an image root: files, ELF, units, packages."""
