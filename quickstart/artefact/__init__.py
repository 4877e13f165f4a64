"""OUT: its files, its manifest, the one door to both, and the verbs that look inside."""
