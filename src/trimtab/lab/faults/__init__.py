"""The faults of the catalogue, each caused for real; one small file per fault."""
