#!/usr/bin/env bash
# onnxruntime-web (MIT) for the page in compiler/web: three files of the npm package, whose SHA-512 is pinned here. The
# package is 33 MB and holds five builds; the one that needs no GPU, 14 MB, runs everywhere. Without npm or a registry
# this says what is missing: the page does not open then, and the tests that need it are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.30.0
sha512=ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61
folder=compiler/web/runtime
files=(ort.wasm.min.mjs ort-wasm-simd-threaded.mjs ort-wasm-simd-threaded.wasm)

[ "$(cat "$folder/version" 2>/dev/null)" = "$version" ] && exit 0
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
if ! command -v npm >/dev/null || ! npm pack --silent --pack-destination "$draft" "onnxruntime-web@$version" >/dev/null; then
  echo "not installed: onnxruntime-web $version (npm and a registry are needed); the page of 'python -m compiler page'"
  echo "does not open, and tests of WebAssembly are skipped. Again: make web"
  exit 0
fi
package="$draft/onnxruntime-web-$version.tgz"
echo "$sha512  $package" | sha512sum --check --quiet
mkdir -p "$folder"
tar --extract --gzip --file "$package" --directory "$folder" --strip-components 2 "${files[@]/#/package/dist/}"
echo "$version" >"$folder/version"
