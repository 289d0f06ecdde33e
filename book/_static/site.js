// What style sheets cannot do: what scrolls takes the keyboard's focus, figures enlarge, what unfolds the contents has a name,
// and what is folded opens before printing.
(() => {
  const BOXES = [
    ["div.math, span.math", "formula"],
    [".pst-scrollable-table-container, .cell_output div.text_html", "table"],
    [".cell_output > .output, .bd-content pre", "output"],
    [".cell_output figure", "figure"],
  ];

  const focusable = () => {
    for (const [selector, what] of BOXES) {
      for (const box of document.querySelectorAll(selector)) {
        const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "hidden";
        if (box.matches("span.math")) box.style.overflow = scrolls ? "auto hidden" : "visible"; // not for rounded pixels
        if (scrolls && box.getAttribute("tabindex") !== "0") { // the theme writes -1 where nothing scrolled at first
          box.tabIndex = 0;
          box.setAttribute("role", "group");
          box.setAttribute("aria-label", `${what}, scrolls sideways`);
          box.dataset.scrolls = "";
        } else if (!scrolls && "scrolls" in box.dataset) {
          for (const name of ["tabindex", "role", "aria-label", "data-scrolls"]) box.removeAttribute(name);
        }
      }
    }
  };

  let waiting;
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(focusable, 100);
  };
  const name = () => {
    for (const toggle of document.querySelectorAll("li.has-children > details > summary")) {
      const page = toggle.closest("li").querySelector("a").textContent.trim();
      toggle.setAttribute("aria-label", `pages below "${page}"`);
    }
  };

  addEventListener("load", () => {
    name();
    focusable();
    document.fonts.ready.then(focusable);
  });
  addEventListener("resize", soon);
  addEventListener("toggle", soon, true);

  addEventListener("click", ({ target }) => {
    const figure = target.closest(".cell_output img");
    if (!figure || figure.closest("a, button")) return;
    const large = document.body.appendChild(document.createElement("dialog"));
    large.className = "large-figure";
    large.setAttribute("aria-label", "the figure, enlarged");
    large.append(figure.cloneNode());
    large.addEventListener("click", () => large.close());
    large.addEventListener("close", () => large.remove());
    large.showModal();
  });

  const FOLDED = "details:not(.toggle-details):not([open])"; // the theme opens those with that class
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll(FOLDED)) {
      part.open = true;
      part.dataset.openedToPrint = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const part of document.querySelectorAll("[data-opened-to-print]")) {
      part.open = false;
      delete part.dataset.openedToPrint;
    }
  });
})();
