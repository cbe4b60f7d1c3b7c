"""Checks that links and anchors have a target: `links.py BOOK DOCS PAGE…`, in the pages of the
rendered site and in the Markdown files of the repository outside it."""

import os
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Returns the anchors of a rendered page, and the links of its main part."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.anchors.add(attributes["id"])
        target = attributes.get("href") if tag == "a" else attributes.get("src") if tag == "img" else None
        if target:
            self.links.append(target)


def rendered(book):
    """Yields problems of the site."""
    pages = {}
    for folder, _, names in os.walk(book):
        for name in names:
            if name.endswith(".html") and name not in ("print.html", "404.html", "toc.html"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as file:
                    pages[path] = Page(file.read())
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = path
            if parts.path:
                target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path)))
            if os.path.isdir(target):
                target = os.path.join(target, "index.html")
            # Pages that the frame of the site links to.
            if os.path.basename(target) in ("print.html", "toc.html"):
                continue
            if not os.path.exists(target):
                yield f"{path}: {link}: no such page"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path}: {link}: no such anchor"


def anchors(text):
    """Returns the anchors of the headings of a Markdown file, as GitHub and mdBook create them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading)))
    return found


def markdown(path):
    """Yields problems of a Markdown file: links to files of the repository."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path))) if parts.path else path
        if not os.path.exists(target):
            yield f"{path}: {link}: no such file"
        elif parts.fragment and target.endswith(".md"):
            with open(target, encoding="utf-8") as file:
                if parts.fragment not in anchors(file.read()):
                    yield f"{path}: {link}: no such anchor"


# Folders of the repository that texts name files in.
FOLDERS = "proto|tracer-client|log-client|log-server|lib|miot|deploy|tests|docs|fuzz"


def sources(path):
    """Problems of a Markdown file: paths of source files in backquotes, such as `proto/src/wire.rs`."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"```.*?```", "", file.read(), flags=re.S)
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text):
        if not os.path.exists(name):
            yield f"{path}: {name}: no such file"
    # Folders of crates before `lib/` had them.
    for name in re.findall(r"`([a-z-]+/src/[\w./-]+)`", text):
        if not os.path.exists(name):
            yield f"{path}: {name}: no such file"


def main():
    book, docs, *pages = sys.argv[1:]
    for folder, _, names in os.walk(docs):
        pages += [os.path.join(folder, name) for name in names if name.endswith(".md")]
    problems = list(rendered(book))
    for page in sorted(pages):
        problems += markdown(page)
        if os.path.basename(page) != "CHANGELOG.md":
            problems += sources(page)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


main()
