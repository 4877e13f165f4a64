"""The edge to the host: the one subprocess door, tools and packages, workspaces."""
