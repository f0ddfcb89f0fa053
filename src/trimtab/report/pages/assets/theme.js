"use strict";
// Colours of the charts, read from the style, so that there is one place for them.
const theme = (() => {
  const names = ["paper", "ink", "mute", "rule", "data", "gone", "alarm", "warn", "good",
    "band-alarm", "band-warn", "band-good", "c1", "c2", "c3", "c4", "c5", "c6"];
  const colours = {};
  function read() {
    const style = getComputedStyle(document.documentElement);
    for (const name of names) colours[name] = style.getPropertyValue("--" + name).trim();
  }
  read();
  return { colours, read };
})();

// An element with text; text of a log is only ever set as textContent.
function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function shortNumber(value) {
  if (value === null || value === undefined) return "";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(size < 1e-3 || size >= 1e9 ? 2 : 3).replace("e+", "e").replace(/\.?0+e/, "e");
  }
  return String(Number(value.toPrecision(4)));
}
