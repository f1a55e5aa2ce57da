"""View models of search spaces: the list of problems with recorded candidates, one problem's space, one candidate."""
