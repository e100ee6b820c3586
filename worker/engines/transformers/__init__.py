"""The only package that imports torch, transformers and sentence_transformers."""
