"""The kernel's own means to restrict a process: Landlock, seccomp, capabilities. No privileges needed."""
