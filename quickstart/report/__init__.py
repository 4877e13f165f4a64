"""Turn the results of a bench into documents, tables, figures and comparisons."""
