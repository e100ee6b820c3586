"""One file a step, in order; a step that ran anywhere is never edited again. Long SQL of a step is in ../sql."""
