"""Routes of the JSON API, one module for each resource."""
