"""Views for people: artifacts, their texts and code figures, recorded candidates, comparisons, listings."""
