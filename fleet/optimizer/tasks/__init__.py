"""Tasks of the search that run in the build pool: stateless functions of plain data."""
