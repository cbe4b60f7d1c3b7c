#!/usr/bin/env bash
# Checks texts against docs/dev/style.md, as far as a script can: words that are ruled out, the width of comments,
# spelling (codespell), and the documentation site: it builds without warnings, and links, anchors and source paths exist.
#   tests/prose.sh          everything
#   tests/prose.sh words    one of: words, spelling, site
set -uo pipefail
cd "$(dirname "$0")/.."
chosen=${1:-all} failed=0
wants() { [ "$chosen" = all ] || [ "$chosen" = "$1" ]; }
# Files to check. The style guide itself quotes the words that it rules out.
texts() { git ls-files "$@" | grep -vE '^(docs/dev/style\.md|tests/prose\.sh|Cargo\.lock|fuzz/corpus/)'; }

if wants words; then
    habits='\b(is|are|was|were|be|been|being) (told|said)\b|\bto be had\b|\bwhoever\b|\bwhomever\b|\banew\b'
    habits+='|\bmend(s|ed|ing)?\b|\b(brings?|brought) about\b|\b(that|it) is no (?!longer\b)[a-z]'
    habits+='|\bwhat (is|was) (given up|put aside|taken up)\b'
    habits+='|\b(errand|desk|heritage|tenant)s?\b|\bencloser\b'
    # Keys of files and messages keep their names.
    keys='"(mend|mended|errand)"|finding\["mend"\]'
    if texts '*.md' '*.toml' '*.sh' '*.service' '*.rs' '*.c' '*.h' '*.py' | xargs grep -nIiP "$habits" | grep -vE "$keys"; then
        echo "prose: docs/dev/style.md rules these words out" >&2
        failed=1
    fi
    texts '*.rs' '*.c' '*.h' | xargs python3 tests/wrap.py || failed=1
fi

if wants spelling; then
    if [ -x target/test-venv/bin/codespell ]; then
        texts '*.rs' '*.md' '*.toml' '*.sh' '*.c' '*.h' '*.py' |
            xargs target/test-venv/bin/codespell --ignore-words tests/spelling.txt || failed=1
    else
        echo "SKIPPED: codespell is not installed: tests/setup.sh" >&2
    fi
fi

if wants site; then
    if command -v mdbook > /dev/null; then
        rm -rf target/book
        # A warning means a missing page, or a summary that cannot be parsed.
        if ! mdbook build > target/book.log 2>&1 || grep -E 'WARN|ERROR' target/book.log; then
            cat target/book.log
            failed=1
        fi
        python3 tests/links.py target/book docs README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md || failed=1
    else
        echo "SKIPPED: mdbook is not installed: tests/setup.sh" >&2
    fi
fi
exit $failed
