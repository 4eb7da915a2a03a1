"""Pages, tables and sentences about results. Nothing in this package imports torch."""
