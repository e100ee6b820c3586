"""`input.where`: what a condition on rows says. The planner types, evaluates and prunes by it."""
