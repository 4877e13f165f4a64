"""Read and write the artefact in OUT, its files and its manifest, and implement the verbs that look inside it."""
