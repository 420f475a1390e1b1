// What a pointer does on the chart. The mouse reads, and plotly pans with it. One finger moves the crosshair, two
// pan and zoom, and a vertical swipe scrolls the page, which `touch-action` in views.css leaves to the browser.

const TAP_PX = 8; // a finger that moves less has tapped

// `point(event, finger)` and `hide()` are the crosshair's; `grip()` returns what is called with how far apart two
// fingers are, of what they were, and where their middle was and is, in pixels of the window.
export function pointers(host, { point, hide, grip }) {
  const down = new Map(); // the fingers on the chart: where they came down and where they are
  let dragging = false, pinch = null;

  const between = (name) => {
    const [a, b] = [...down.values()].map((finger) => finger[name]);
    return { x: (a.clientX + b.clientX) / 2, apart: Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) };
  };
  const onChart = (event) => !event.target.closest?.("[role=slider]");

  host.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" || !onChart(event)) return;
    down.set(event.pointerId, { first: event, now: event });
    if (down.size === 1) dragging = false;
    if (down.size !== 2) return;
    for (const finger of down.values()) finger.first = finger.now;
    hide();
    pinch = grip();
  });

  host.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") {
      if (!event.buttons) { if (onChart(event)) point(event); else hide(); }
      return;
    }
    const finger = down.get(event.pointerId);
    if (!finger) return;
    finger.now = event;
    if (pinch) {
      if (down.size !== 2) return;
      const from = between("first"), to = between("now");
      pinch(to.apart / from.apart, from.x, to.x);
      return;
    }
    const across = Math.abs(event.clientX - finger.first.clientX), along = Math.abs(event.clientY - finger.first.clientY);
    dragging ||= across > TAP_PX && across > along;
    if (dragging) point(event, true);
  });

  function lifted(event) {
    const finger = down.get(event.pointerId);
    down.delete(event.pointerId);
    const tapped = finger && !pinch && Math.hypot(event.clientX - finger.first.clientX, event.clientY - finger.first.clientY) <= TAP_PX;
    if (tapped && event.type === "pointerup") point(event, true);
    if (!down.size) pinch = null;
  }
  host.addEventListener("pointerup", lifted);
  host.addEventListener("pointercancel", lifted); // the browser scrolls
  host.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });

  // Plotly would take every touch for a pan, and the page could not be scrolled.
  host.addEventListener("touchstart", (event) => { if (onChart(event)) event.stopPropagation(); }, { capture: true, passive: true });

  // What a finger has pointed at stays until another place of the page is touched.
  const elsewhere = (event) => {
    if (!host.isConnected) document.removeEventListener("pointerdown", elsewhere);
    else if (event.pointerType !== "mouse" && !host.contains(event.target)) hide();
  };
  document.addEventListener("pointerdown", elsewhere);
}
