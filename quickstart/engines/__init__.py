"""Run the sequences of stages of the verbs `build`, `trace` and `rebuild`."""
