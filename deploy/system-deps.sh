#!/usr/bin/env bash
# System packages of Treering. Installed when SYSTEM_DEPS=1 and the user is root on a Debian system; otherwise this
# says what is missing and what is used instead. Never fails a build for something that has an embedded default.
set -euo pipefail

commands=(victoria-metrics chromium strace ip)
declare -A package_of=([ip]=iproute2)
missing=()
for command in "${commands[@]}"; do
  command -v "$command" >/dev/null || missing+=("${package_of[$command]:-$command}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "${SYSTEM_DEPS:-}" = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  # The package starts a server of its own; the stack starts one with its own folder and port.
  command -v systemctl >/dev/null && systemctl disable --now victoria-metrics 2>/dev/null || true
else
  echo "not installed: ${missing[*]} (without victoria-metrics the monitor keeps its window in memory; without chromium,"
  echo "strace or iproute2 the tests that look at web pages or count connections are skipped)."
  echo "To install: as root, SYSTEM_DEPS=1 make system-deps"
fi
