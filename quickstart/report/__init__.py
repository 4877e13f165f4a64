"""Turn results into documents, tables, figures and comparisons."""
