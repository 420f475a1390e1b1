// The theme: as the system has it, light or dark; remembered. A plain script in the head, so that nothing flashes.
(() => {
  const KEY = "cpb.theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try { return localStorage.getItem(KEY) || "auto"; } catch { return "auto"; } // storage may be switched off
  };
  let choice = chosen();

  const resolved = () => (choice === "auto" ? (system.matches ? "dark" : "light") : choice);

  const apply = () => {
    document.documentElement.dataset.theme = resolved();
    window.dispatchEvent(new CustomEvent("cpb-theme"));
  };

  const choose = (next) => {
    choice = next;
    try { localStorage.setItem(KEY, next); } catch { /* the choice then lasts as long as the page */ }
    apply();
  };

  system.addEventListener("change", apply);
  apply();
  window.cpbTheme = { choose, resolved, choice: () => choice };
})();
