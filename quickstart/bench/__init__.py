"""A matrix of runs in sequence, and what each run boots from."""
