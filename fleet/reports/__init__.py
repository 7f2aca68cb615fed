"""Reports of tuning runs, to look at and to pass on: figures, curves, one page in HTML or Markdown."""
