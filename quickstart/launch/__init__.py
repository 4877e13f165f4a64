"""Launch an artefact: start machines that run guests, each through guest.Launcher."""
