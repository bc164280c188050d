"""Starting the engines of a cluster on this machine, and ending them: `disaggroute live up`, `status` and `down`."""
