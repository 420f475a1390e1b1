// What is said where the service, or the host of a published page, does not answer. A plain script in the head: where a
// module cannot be had, none can say it.
(() => {
  window.cpbAway = "published" in document.documentElement.dataset ? "A file of this page cannot be fetched; check the connection."
    : "The service does not answer; is `cpb serve` still running?";

  window.addEventListener("error", ({ target }) => {
    const place = document.querySelector("main [role=status]");
    if (target.type !== "module" || !place) return;
    place.className = "card problem";
    place.textContent = `${window.cpbAway.replaceAll("`", "")} Reload this page afterwards.`;
  }, true); // the error of a script does not rise
})();
