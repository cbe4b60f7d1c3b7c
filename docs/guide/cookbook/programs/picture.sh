#!/bin/sh
# Draws plots of `miot report --plots DIR` below each other into one picture, each with a caption.
#   picture.sh OUT.png "CAPTION" PLOT.svg ["CAPTION" PLOT.svg ...]
# A plot with an empty caption continues the one before. It needs chromium.
set -eu
out=$(realpath "$1") height=16 page=$(mktemp -d)
trap 'rm -rf "$page"' EXIT
shift
echo '<meta charset="utf-8"><style>body { margin: 8px; font: bold 20px/24px sans-serif; color: #333; background: #fff }
    p { margin: 8px 0 0 } img { width: 1100px; display: block }</style>' > "$page/page.html"
while [ $# -ge 2 ]; do
    [ -z "$1" ] || { echo "<p>$1</p>" >> "$page/page.html"; height=$((height + 32)); }
    echo "<img src=\"file://$(realpath "$2")\">" >> "$page/page.html"
    height=$((height + $(sed -n '1s/^<svg [^>]* height="\([0-9]*\)".*/\1/p' "$2")))
    shift 2
done
chromium --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
    --allow-file-access-from-files --window-size="1116,$height" --screenshot="$out" "file://$page/page.html" 2> "$page/log" ||
    { cat "$page/log" >&2; exit 1; }
