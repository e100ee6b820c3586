"""What a person may change: jobs, batches, machines. Each change is one audited transaction."""
