"""Import a foreign tar archive or disk image. Foreign means that somebody else has made the archive or image. The
modules call this archive or image the source. An unprivileged process reads the source. QuickStart's own process
refuses bad file names and writes the copy.

The unprivileged process (module ``reader``) runs as the user nobody with an empty root directory and without a network.
It parses the foreign bytes (modules ``ext4`` and ``tar``). The process reports each file of the source, of any kind, as
a member (module ``members``). A member consists of the file's path and metadata. After each member, the process sends
the file's data. The module ``home`` writes these members into a new directory. ``home`` creates each member relative to
an open directory, by a name without a slash.
"""
