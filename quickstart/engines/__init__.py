"""The work of verbs such as `build`, `trace` and `rebuild`, each as a sequence of stages."""
