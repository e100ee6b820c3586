"""One file a step, in order; a step that ran anywhere is never edited again."""
