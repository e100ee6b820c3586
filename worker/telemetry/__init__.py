"""What a worker measures: spans, counts, engine time, GPUs, and the metrics of its machine."""
