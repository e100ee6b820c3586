"""The worker: a supervisor for one machine, and the children that hold warm engines."""
