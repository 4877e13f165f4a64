"""Read the contents of an image's root file system, such as files, ELF objects, units and packages."""
