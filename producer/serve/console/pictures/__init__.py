"""Pictures of jobs and of the fleet as inline SVG, a module a picture. Pure.

Of a job, shapes stretch with the page, text does not: the outer SVG has no viewBox, its texts stand at percentages, and paths
lie in an inner SVG whose viewBox is stretched.
"""
