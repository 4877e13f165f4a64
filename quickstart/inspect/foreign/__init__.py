"""Import a foreign tar archive or disk image, one that somebody else has made. An unprivileged process reads this
source. QuickStart's own process refuses bad names and writes the copy.

The process ``reader`` runs as nobody in an empty root without a network, and parses the foreign bytes (modules
``ext4`` and ``tar``). For each file of the source, whatever its kind, the process reports a member, which is the
file's path and metadata, followed by the file's data (module ``members``). The module ``home`` writes these members
into a new directory. ``home`` creates each member relative to an open directory, by a name without a slash.
"""
