"""The Debian package quickstart-guest: what stays in a machine to see that a packed file changed (docs/users/never-stale.md)."""
