"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  document.body.append(tip);

  const show = (target, x, y) => {
    tip.textContent = target.dataset.tip;
    tip.classList.add("on");
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  };
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest && event.target.closest("[data-tip]");
    if (target) show(target, event.clientX, event.clientY);
    else tip.classList.remove("on");
  });
  document.addEventListener("scroll", () => tip.classList.remove("on"), { passive: true });

  // A click on the legend switches a series; with Alt or a double click, all others.
  const set = (figure, button, on) => {
    button.setAttribute("aria-pressed", String(on));
    for (const part of figure.querySelectorAll("[data-s]")) {
      if (part.dataset.s === button.dataset.series) part.toggleAttribute("hidden", !on);
    }
  };
  for (const button of document.querySelectorAll(".key")) {
    const figure = button.closest("figure");
    const all = () => [...figure.querySelectorAll(".key")];
    const pressed = (key) => key.getAttribute("aria-pressed") === "true";
    const alone = () => {
      const others = all().filter((key) => key !== button);
      const on = others.every((key) => !pressed(key));
      set(figure, button, true);
      for (const key of others) set(figure, key, on);
    };
    button.addEventListener("click", (event) => (event.altKey ? alone() : set(figure, button, !pressed(button))));
    button.addEventListener("dblclick", alone);
  }

  for (const select of document.querySelectorAll("[data-choose]")) {
    select.addEventListener("change", () => {
      for (const panel of select.closest("figure").querySelectorAll("[data-panel]")) {
        panel.hidden = panel.dataset.panel !== select.value;
      }
    });
  }

  const theme = document.querySelector("button.theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => (theme.textContent = dark() ? "Light page" : "Dark page");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  name();

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        for (const link of links.values()) link.classList.remove("here");
        links.get(entry.target.id)?.classList.add("here");
      }
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  for (const key of links.keys()) {
    const section = document.getElementById(key);
    if (section) seen.observe(section);
  }
})();
