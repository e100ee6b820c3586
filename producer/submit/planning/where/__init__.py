"""`input.where` over the columns of a plan: type checks, evaluation by DuckDB, row groups that cannot match."""
