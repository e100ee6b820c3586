"""Archives: what the ledger knew of the batches of a closed job, in files beside the output."""
