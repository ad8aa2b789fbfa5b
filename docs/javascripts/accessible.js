// The search is named, and what scrolls sideways, a table or a block of code, can be scrolled with the keyboard.
(function () {
  function update() {
    for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
      if (region.scrollWidth > region.clientWidth) {
        region.setAttribute("tabindex", "0");
      } else if (region.matches(".md-typeset__scrollwrap")) {
        region.removeAttribute("tabindex");
      }
    }
  }
  window.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  });
  window.addEventListener("load", () => setTimeout(update, 50));
  window.addEventListener("resize", update);
})();
