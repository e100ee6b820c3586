"""What people see of jobs in a terminal."""
