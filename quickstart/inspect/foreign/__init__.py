"""Import a foreign tar or disk: a process without any privilege reads it, and another one that refuses bad
names writes the copy.

``reader`` runs as nobody in an empty root without a network, and parses the foreign bytes (``ext4``,
``tar``). It reports what it found as members (``members``). ``home`` writes these below a directory of
ours, each by a plain name in an open directory.
"""
