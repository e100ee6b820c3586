"""What people change: jobs, machines; and the audit log that says who did."""
