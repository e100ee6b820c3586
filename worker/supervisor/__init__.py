"""The supervisor of one machine: which engine a slot loads, its children, what probes ask."""
