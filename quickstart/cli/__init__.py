"""The command line of QuickStart. Each verb, such as `build` or `run`, has a module. Only this package turns errors
into exit codes.
"""
