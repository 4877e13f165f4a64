"""The smallest profile of all: an application that answers on a port."""

from __future__ import annotations

SMALL = """\
schema = 1
name = "app"
packages = ["app"]
unit = "app.service"
[ready]
kind = "tcp"
port = 80
"""
