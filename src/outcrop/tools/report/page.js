"use strict";
// Pointers and zoom. Nothing here draws: without it the page is complete.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const show = (lines, x, y) => {
    tip.textContent = lines.join("\n");  // text, never markup
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(x + 14, room - box.width - 8))}px`;
    tip.style.top = `${Math.max(8, y - box.height - 12)}px`;
  };
  const hide = () => { tip.hidden = true; };

  const readable = (value) =>
    value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 1000 ? 6 : 4 });

  // The nearest point of every curve to the pointer.
  const curves = (plot, event) => {
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const at = (100 * (event.clientX - box.left)) / box.width;
    const lines = [];
    for (const line of svg.querySelectorAll("polyline")) {
      line.known ??= {
        drawn: line.getAttribute("points").split(" ").map((pair) => parseFloat(pair)),
        values: JSON.parse(line.dataset.points),
      };
      const { drawn, values } = line.known;
      let best = 0;
      values.forEach((_, i) => {
        if (Math.abs(drawn[i] - at) < Math.abs(drawn[best] - at)) best = i;
      });
      if (!values.length) continue;
      const [unit, x] = line.dataset.unit.split("|");
      const where = x ? `at ${readable(values[best][0])} ${x}` : `epoch ${values[best][0]}`;
      lines.push(`${line.dataset.name}: ${readable(values[best][1])} ${unit} ${where}`);
    }
    if (lines.length) show(lines, event.clientX, event.clientY);
  };

  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const marked = target?.closest("[data-tip]");
    const plot = target?.closest(".plot");
    if (marked) show([marked.dataset.tip], event.clientX, event.clientY);
    else if (plot) curves(plot, event);
    else hide();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!(event.target instanceof Element) || !event.target.closest("[data-tip], .plot")) hide();
  });
  addEventListener("scroll", hide, { passive: true });

  for (const zoom of document.querySelectorAll(".zoom")) {
    zoom.hidden = false;
    zoom.querySelector("input").addEventListener("input", (event) => {
      for (const inner of zoom.closest("section").querySelectorAll(".inner")) {
        inner.style.width = `${100 * event.target.value}%`;
      }
    });
  }

  // On paper, tables of moderate length are open.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")]
      .filter((details) => details.querySelectorAll("tr").length <= 40);
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
