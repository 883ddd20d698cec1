"""Formulas in NumPy, each written once. Backends compute the same numbers faster."""
