"""What the pages of recorded candidates show: the list of spaces, one space in pictures, one candidate."""
