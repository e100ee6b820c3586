"""A condition on rows over the columns of a plan: typed, evaluated, held against the statistics of row groups."""
