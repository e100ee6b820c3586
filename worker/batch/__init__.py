"""What is done with a group of batches: read -> render -> infer -> publish."""
