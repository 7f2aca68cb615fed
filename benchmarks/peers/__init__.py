"""Stock TVM as its users run it: the processes that our figures are measured beside."""
