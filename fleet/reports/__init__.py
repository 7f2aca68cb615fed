"""What became of a tuning run, to look at and to pass on: figures, curves, one page in HTML or Markdown."""
