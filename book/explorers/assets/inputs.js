// Fields of a number, each with a slider beside it; choices; and what happens when one of them changes.
const root = document.currentScript.closest(".dpsub-explorer");
const shown = (name) => root.querySelector(`[data-shown=${name}]`);
const say = (name, text) => { if (shown(name).textContent !== text) shown(name).textContent = text; };
const chosen = (name) => root.querySelector(`select[data-input=${name}]`).value;
const short = (value, digits = 3) => {
  if (!(value > 0)) return "0";
  if (value >= 1e15 || value < 1e-4) return value.toExponential(digits - 1).replace(/\.?0*e/, "e").replace("e+", "e").replace("e-", "e−");
  return value >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
};
const percent = (share) => {
  const shownShare = 100 * share;
  return `${shownShare > 99.9 && shownShare < 100 ? "99.9" : shownShare >= 1 ? shownShare.toFixed(1) : Number(shownShare.toPrecision(2))} %`;
};

// A field's number; NaN, with the reason in `complaint`, if it is out of its range.
let complaint = "";
function read(name) {
  const field = root.querySelector(`input[type=number][data-input=${name}]`), value = Number(field.value);
  const { low, high, whole } = field.dataset;
  const right = field.value !== "" && value >= Number(low) && value <= Number(high) && (!("whole" in field.dataset) || Number.isInteger(value));
  field.setAttribute("aria-invalid", String(!right));
  if (right) return value;
  complaint ||= `${field.dataset.name} must be ${whole === undefined ? "a number" : "a whole number"} from ${low} to ${Number(high).toLocaleString("en")}.`;
  return NaN;
}

// JupyterLab takes the arrow keys for itself where a slider leaves them to the browser.
function obeyKeys(slider, by) {
  const steps = { ArrowLeft: -by, ArrowDown: -by, ArrowRight: by, ArrowUp: by, PageDown: -10 * by, PageUp: 10 * by };
  slider.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    slider.value = Number(slider.value) + steps[event.key];
    slider.dispatchEvent(new Event("input"));
  });
}

// What was chosen stands in the page's address: a link to it shows the same. JupyterLab's address is its own.
const remembers = root.dataset.key && location.protocol !== "file:" && !("jpThemeLight" in document.body.dataset);
const kept = (field) => `${root.dataset.key}.${field.dataset.input}`;
function recall() {
  const chosenBefore = new URLSearchParams(remembers ? location.search : "");
  for (const field of root.querySelectorAll("input[type=number][data-input], select[data-input]")) {
    const value = chosenBefore.get(kept(field));
    if (value !== null) field.value = value;
  }
}
function remember(field) {
  if (!remembers) return;
  const address = new URL(location);
  address.searchParams.set(kept(field), field.value);
  history.replaceState(history.state, "", address);
}

function listen(changed) {
  let waiting;
  const answer = () => {
    complaint = "";
    changed();
    root.toggleAttribute("data-wrong", complaint !== "");
  };
  const later = () => {
    root.setAttribute("aria-busy", "true");
    clearTimeout(waiting);
    waiting = setTimeout(() => { answer(); root.removeAttribute("aria-busy"); }, 60);
  };
  recall();
  for (const field of root.querySelectorAll("input[type=number][data-input]")) {
    const slider = field.closest(".input").querySelector("input[type=range]"), { low, high } = field.dataset;
    const [a, b] = [low, high].map((end) => ("log" in field.dataset ? Math.log(end) : Number(end)));
    const follow = () => {
      const value = Number(field.value);
      slider.value = 1000 * (("log" in field.dataset ? Math.log(Math.max(value, low)) : value) - a) / (b - a);
      slider.setAttribute("aria-valuetext", field.value);
    };
    [slider.min, slider.max, slider.step] = [0, 1000, 1];
    obeyKeys(slider, 5);
    slider.setAttribute("aria-label", `${field.dataset.name}, slider`);
    field.addEventListener("input", () => { follow(); remember(field); later(); });
    slider.addEventListener("input", () => {
      const position = a + (b - a) * slider.value / 1000, value = "log" in field.dataset ? Math.exp(position) : position;
      field.value = "whole" in field.dataset ? Math.round(Number(value.toPrecision(3))) : Number(value.toPrecision(value < 1e-3 ? 2 : 3));
      slider.setAttribute("aria-valuetext", field.value);
      remember(field);
      later();
    });
    follow();
  }
  for (const choice of root.querySelectorAll("select")) choice.addEventListener("change", () => { remember(choice); later(); });
  for (const button of root.querySelectorAll("button[data-preset]")) {
    button.addEventListener("click", () => {
      for (const [name, value] of Object.entries(JSON.parse(button.dataset.preset))) {
        const field = root.querySelector(`input[data-input=${name}]`);
        field.value = value;
        field.dispatchEvent(new Event("input"));
      }
    });
  }
  answer();
}
const path = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
