"""artefact → launch: machines that run guests, each behind guest.Launcher."""
