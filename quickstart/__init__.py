"""QuickStart: start a VM and its application faster, from an image that stays an ordinary Debian image."""

__version__ = "0.2.0"
