"""Which columns of a table have the scores, the labels and the ids, by their names and first rows."""
