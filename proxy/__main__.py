"""`python -m proxy`: the proxy with settings from the environment and the command line."""

from proxy.proxy import main

main()
