"""Many engines: the fleet's rules, the configuration under deploy/fleet, and what an agent sees of a machine."""
