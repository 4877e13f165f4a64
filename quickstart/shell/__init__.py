"""Shells at three places of the way from the reference image to the guest: programs for these places, and the user's terminal."""
