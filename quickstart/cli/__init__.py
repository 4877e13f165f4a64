"""The command line, with one module for each verb. Only this package turns errors into exit codes."""
