"""What happens on the host: records, journal, judgement."""
