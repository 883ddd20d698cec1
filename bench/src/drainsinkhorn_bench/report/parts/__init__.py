"""Parts of a section: each asks the records of one campaign and yields figures and tables, or nothing."""
