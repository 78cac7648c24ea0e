"""Collecting runs, and methods side by side at equal budget with honest selection and intervals."""
