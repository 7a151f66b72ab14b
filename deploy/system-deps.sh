#!/usr/bin/env bash
# System packages of Treering. Installed when SYSTEM_DEPS=1 and the user is root on a Debian system; otherwise this
# says what is missing and what is used instead. Never fails a build for something that has an embedded default.
set -euo pipefail

packages=(victoria-metrics chromium)
missing=()
for package in "${packages[@]}"; do
  command -v "$package" >/dev/null || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "${SYSTEM_DEPS:-}" = 1 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  # The package starts a server of its own; the stack starts one with its own folder and port.
  command -v systemctl >/dev/null && systemctl disable --now victoria-metrics 2>/dev/null || true
else
  echo "not installed: ${missing[*]} (without victoria-metrics the monitor keeps its window in memory; without chromium the"
  echo "tests that look at the web pages are skipped)."
  echo "To install: as root, SYSTEM_DEPS=1 make system-deps"
fi
