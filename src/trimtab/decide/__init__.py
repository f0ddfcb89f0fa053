"""What to do about an incident: `advice`, by class of incident, for both rule sets."""
