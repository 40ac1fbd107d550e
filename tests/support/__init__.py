"""What several tests speak: a tiny language that builds records."""
