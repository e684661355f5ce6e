#!/bin/sh
# Make sure that Debian packages are there: install the missing ones as root, else say how to.
# Ubuntu has no package of Chromium but a snap: there Playwright's own is installed.
set -u
PLAYWRIGHT="${VENV:-.venv}/bin/playwright install --with-deps chromium"
missing=""
browser=""
for package in "$@"; do
  command -v "$package" >/dev/null 2>&1 && continue
  if [ "$package" = chromium ] && grep -qx 'ID=ubuntu' "${OS_RELEASE:-/etc/os-release}"; then
    ls -d "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium* >/dev/null 2>&1 || browser="$PLAYWRIGHT"
  else
    missing="$missing $package"
  fi
done
[ -z "$missing$browser" ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  # shellcheck disable=SC2086
  { [ -z "$missing" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; }; } &&
    $browser && exit 0
fi
echo "Missing on this machine:$missing${browser:+ chromium}. Install with:" \
  "${missing:+sudo apt-get install$missing}${browser:+${missing:+ && }$browser}" >&2
exit 1
