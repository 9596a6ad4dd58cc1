// Renews the overview. Without it the page renews itself as a whole. Where somebody is about to press something, nothing moves.
"use strict";
(() => {
  const live = document.getElementById("live");
  setInterval(async () => {
    if (document.hidden || live.contains(document.activeElement)) return;
    try {
      const answer = await fetch("/?renew", { cache: "no-store" });
      if (answer.redirected) { location.assign("/login"); return; } // the session has ended
      if (!answer.ok) return;
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (next && !live.contains(document.activeElement) && next.innerHTML !== live.innerHTML) live.replaceChildren(...next.childNodes);
    } catch { /* the agent is being restarted: it is tried again */ }
  }, 5000);
})();
