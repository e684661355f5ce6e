"""Pages in real Chromium. It starts once for all of them: a package is run by one worker."""
