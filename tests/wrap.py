"""Checks that comments wrap at 100 columns: `wrap.py FILE…`. Tables and drawings are exempt, because they cannot wrap."""

import re
import sys

LIMIT = 100
COMMENT = re.compile(r"^\s*(//[/!]?|/\*|\*(?=\s)) ?(.*)$")
DRAWING = re.compile(r"[│┌└├─►◄═▲▼]")

found = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            comment = COMMENT.match(line)
            if len(line) <= LIMIT or not comment:
                continue
            text = comment.group(2).lstrip()
            if text.startswith("|") or DRAWING.search(text):
                continue
            print(f"{path}:{number}: a comment of {len(line)} columns, at most {LIMIT} are allowed", file=sys.stderr)
            found += 1
sys.exit(bool(found))
