"""Where does a policy win? Many conditions, the same policies: `disaggroute evaluate --matrix`."""
