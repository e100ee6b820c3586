"""Functions of users: called in a process of their own, which may die without the child."""
