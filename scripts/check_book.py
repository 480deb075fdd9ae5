"""Completes a site that mdBook has built from docs/, and checks its links.

Pages link to files elsewhere in the repository, such as examples. The script copies these files to `source/` of the site, and changes the
links. Then it checks that every link and anchor of every page exists. It prints broken links, and exits with 1 if there are any.
"""

import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors.update(value for key in ("id", "name") if (value := found.get(key)))
        link = found.get("href") if tag == "a" else found.get("src") if tag == "img" else None
        if link:
            self.links.append(link)


def copied(book: Path, page: Path, link: str) -> str:
    """Copies a linked file of the repository, and returns the link to the copy. Returns links to pages unchanged."""
    parts = urlsplit(link)
    folder = ROOT / "docs" / page.parent.relative_to(book)
    target = (folder / unquote(parts.path)).resolve()
    if parts.scheme or not parts.path or target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
        return link
    # mdBook replaces .md by .html in all links, including those to files that are not pages.
    if not target.exists() and target.suffix == ".html":
        target = target.with_suffix(".md")
    if not target.exists():
        return link
    copy = book / "source" / target.relative_to(ROOT)
    if target.is_dir():
        copy /= "index.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("".join(f"{path.name}\n" for path in sorted(target.iterdir())))
    else:
        # Browsers show .txt instead of downloading it.
        copy = copy.with_name(copy.name + ".txt")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copy)
    return "../" * len(page.parent.relative_to(book).parts) + copy.relative_to(book).as_posix()


def main(book: Path) -> int:
    pages = [page for page in book.rglob("*.html") if page.name not in ("404.html", "toc.html")]
    for page in pages:
        parts = re.split(r'(?<=<a href=")([^"]+)(?=")', page.read_text())
        parts[1::2] = [copied(book, page, link) for link in parts[1::2]]
        page.write_text("".join(parts))
    parsed = {page: Page(page.read_text()) for page in pages}
    broken = []
    for page, content in parsed.items():
        for link in content.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = parsed[target].anchors if target in parsed else {unquote(parts.fragment)}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{page.relative_to(book)}: {link}")
    print("\n".join(sorted(set(broken))) or f"{len(pages)} pages, no broken link")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
