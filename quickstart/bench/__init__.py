"""Run the bench. Make the files from which each configuration (way to boot) boots, and do all runs of a matrix (list of
measurements) one after the other.
"""
