"""Import a foreign tar or disk image. An unprivileged process reads the source; another process, which
refuses bad names, writes the copy.

``reader`` runs as nobody in an empty root without a network, and parses the foreign bytes (``ext4``,
``tar``). ``reader`` reports the files that it finds as members (``members``). ``home`` writes these members
into a directory of ours. ``home`` creates each member by a plain name in an open directory.
"""
