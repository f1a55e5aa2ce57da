"""The fp64 reference: numbers of the short dtypes, the result of a problem, and how far a kernel may be from it."""
