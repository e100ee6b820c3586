"""Pictures of a job as inline SVG, a module a picture. Pure.

Shapes stretch with the page, text does not: the outer SVG has no viewBox, its texts stand at percentages, and paths
lie in an inner SVG whose viewBox is stretched.
"""
