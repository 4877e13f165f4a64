"""Read and write artefacts, the directories (OUT) that `quickstart build` makes, and show what is in an artefact."""
