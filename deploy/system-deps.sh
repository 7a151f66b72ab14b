#!/usr/bin/env bash
# System packages of Treering. Installed when SYSTEM_DEPS=1 and the user is root on a Debian system; otherwise this
# says what is missing and what is used instead. Never fails a build for something that has an embedded default.
set -euo pipefail

commands=(victoria-metrics chromium strace ip node npm)
declare -A package_of=([ip]=iproute2 [node]=nodejs)
missing=()
for command in "${commands[@]}"; do
  command -v "$command" >/dev/null || missing+=("${package_of[$command]:-$command}")
done
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing+=(postgresql)
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "${SYSTEM_DEPS:-}" = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  # These packages start servers of their own; the stack and the tests start theirs, with their own folders and ports.
  for service in victoria-metrics postgresql; do
    command -v systemctl >/dev/null && systemctl disable --now "$service" 2>/dev/null || true
  done
else
  echo "not installed: ${missing[*]} (without victoria-metrics the monitor keeps its window in memory; without chromium,"
  echo "strace, iproute2, node and npm, or postgresql the tests that look at web pages, count connections, run WebAssembly"
  echo "or use servers of other people are skipped)."
  echo "To install: as root, SYSTEM_DEPS=1 make system-deps"
fi
