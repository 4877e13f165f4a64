"""Import a foreign tar archive or disk image. An unprivileged process reads the source. QuickStart's own
process refuses bad names and writes the copy.

The process ``reader`` runs as nobody in an empty root without a network, parses the foreign bytes (modules
``ext4`` and ``tar``), and reports the files that it finds as members (module ``members``). The module
``home`` writes these members into a new directory. It creates each member relative to an open directory, by a
name without a slash.
"""
