#!/bin/sh
# Make sure that Debian packages are there: install the missing ones as root, else say how to.
set -u
missing=""
for package in "$@"; do
  command -v "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  # shellcheck disable=SC2086
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing && exit 0
fi
echo "Missing on this machine:$missing. Install with: sudo apt-get install$missing" >&2
exit 1
