"""`input.where`: a condition on rows is read, typed, evaluated, and held against statistics."""
