"""Results become documents, tables, figures and comparisons."""
