#!/bin/sh
# Sees to liburing's headers, which the build uses for io_uring. Without them it still succeeds.
set -eu
if echo '#include <liburing.h>' | ${CXX:-c++} -x c++ -E - >/dev/null 2>&1; then exit 0; fi
if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
  echo "liburing-dev is missing: installing it with apt-get"
  if (apt-get update && apt-get install -y --no-install-recommends liburing-dev pkg-config) \
      >/dev/null 2>&1; then
    exit 0
  fi
  echo "that failed; building without io_uring"
  exit 0
fi
echo "liburing-dev is missing: building without io_uring. To have it, run this and then make clean:"
if [ -e /etc/debian_version ]; then
  echo "  sudo apt-get install -y liburing-dev pkg-config"
else
  echo "  install the development package of liburing (liburing-devel on Fedora)"
fi
