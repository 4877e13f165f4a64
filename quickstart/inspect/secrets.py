"""The rules that recognise secrets in an image. The rules are known file names, and the first bytes of private keys."""

from __future__ import annotations

import re

SECRET_GLOBS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/security/opasswd",
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssl/private/**",
)
# The marker must be followed by the beginning of a key, because every library that reads keys has the marker alone.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[ \t]*\r?\n\s*[A-Za-z0-9+/]")
