#!/bin/sh
# Sees to Chromium and fio, with which more tests run; without them these are skipped, and said to be.
# Installs only as root on Debian, and only where it may: in CI (CI=true), or when told to (--install).
set -eu
missing=
command -v fio >/dev/null || missing="fio"
for name in chromium chromium-browser google-chrome google-chrome-stable none; do
  if [ "$name" = none ]; then missing="$missing chromium"; fi
  if command -v "$name" >/dev/null; then break; fi
done
missing=${missing# }
if [ -z "$missing" ]; then exit 0; fi
if { [ "${CI:-}" = true ] || [ "${1:-}" = --install ]; } && [ "$(id -u)" = 0 ] \
    && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
  echo "$missing: missing, installing with apt-get"
  # shellcheck disable=SC2086
  if (apt-get update && apt-get install -y --no-install-recommends $missing) >/dev/null 2>&1; then
    exit 0
  fi
  echo "that failed"
fi
echo "$missing: not here, tests that need them will be skipped (on Debian: apt-get install $missing)"
