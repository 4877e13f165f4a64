"""The artefact in OUT: its files, its manifest, how both are read and written, and the verbs that look inside."""
