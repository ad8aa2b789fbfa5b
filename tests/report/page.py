"""Reads a report page as a browser without scripts would: tags, attributes, texts."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}
NO_TEXT = {"wbr"}  # where a line may end


class Node:
    """An element with its children and texts in order."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Node | str] = []

    def all(self, tag: str = "", class_name: str = "") -> list[Node]:
        """Every element below with the tag and the class, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                classes = child.attributes.get("class", "").split()
                if (not tag or child.tag == tag) and (not class_name or class_name in classes):
                    found.append(child)
                found += child.all(tag, class_name)
        return found

    def section(self, name: str) -> Node:
        return next(node for node in self.all("section") if node.attributes["id"] == name)

    @property
    def text(self) -> str:
        texts = [child.text if isinstance(child, Node) else child for child in self.children]
        return " ".join(" ".join(texts).split())

    @property
    def width(self) -> float:
        style = dict(item.split(":") for item in self.attributes["style"].split(";"))
        return float(style["width"].removesuffix("%"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]
        self.is_joined = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        if tag in NO_TEXT:
            self.is_joined = True
            return
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        children = self.open[-1].children
        if self.is_joined and children and isinstance(children[-1], str):
            children[-1] += data
        else:
            children.append(data)
        self.is_joined = False


def read_page(html: str) -> Node:
    """The tree of the page; AssertionError where tags are not properly nested."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never closed"
    return reader.root
