"""Run the verbs `build`, `trace` and `rebuild`. Each verb is a sequence of stages, that is, of steps such as making the
reference image.
"""
