"""Tune: which engine arguments run the rows of a spec fastest on the hardware that is there."""
