"""`make bench-embed`: the transformers engine in a fleet beside the library's own loops."""
