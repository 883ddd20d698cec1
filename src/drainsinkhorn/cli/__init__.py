"""The command line: the only package of the library that prints."""
