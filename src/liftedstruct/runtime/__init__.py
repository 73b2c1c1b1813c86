"""What every stage stands on: checks of arguments, files, threads, memory, progress, compiled loops, optional packages."""
