"""The interface to the host, with modules for subprocesses, tools, packages, files, workspaces and user namespaces."""
