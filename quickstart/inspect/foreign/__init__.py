"""Import a foreign tar archive or disk image. Foreign means that somebody else has made the archive or image. An
unprivileged process reads this archive or image, the source. QuickStart's own process refuses bad names and writes the
copy.

The process ``reader`` runs as nobody in an empty root without a network, and parses the foreign bytes (modules
``ext4`` and ``tar``). The process reports each file of the source, of any kind, as a member (module ``members``). A
member consists of the file's path and metadata. After each member, the process sends the file's data. The module
``home`` writes these members into a new directory. ``home`` creates each member relative to an open directory, by a
name without a slash.
"""
