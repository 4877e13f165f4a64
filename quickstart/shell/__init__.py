"""Shells at three places between the reference image and the guest: the programs that run there, and the
user's terminal.
"""
