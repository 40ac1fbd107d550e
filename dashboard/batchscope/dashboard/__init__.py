"""What a person sees in the browser. Asks the exporter over HTTP; imports nothing of it."""
