"""artefact → launch: machines that run guests, each behind model.Launcher."""
