"""The interface to the host: subprocesses, tools and packages, files, workspaces, user namespaces."""
