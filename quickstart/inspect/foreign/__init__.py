"""What a stranger made, a tar or a disk, comes home: read by a process without any power, written by one that refuses bad names.

``reader`` runs as nobody in an empty root without a network, and understands the foreign bytes (``ext4``, ``tar``). It says what it
found as members (``members``). ``home`` writes these below a directory of ours, each by a plain name in an open directory.
"""
