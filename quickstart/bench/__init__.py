"""Run the bench: all runs of a matrix in sequence, and the files that each run boots from."""
