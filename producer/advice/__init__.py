"""What helps where a command is read: who works here, and one function over that."""
