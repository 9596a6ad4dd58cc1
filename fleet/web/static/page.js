// Renews the page when the server says that a device reported. Without it the page is as useful, only not live.
"use strict";
(() => {
  const fleet = document.getElementById("fleet");
  const live = document.getElementById("live");
  const show = (state, text) => { live.dataset.state = state; live.textContent = text; };
  let busy = false, again = false;

  async function renew() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch("fragment" + location.search, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      fleet.innerHTML = await answer.text(); // rendered and escaped by the server that sent this script
      show("on", "live");
    } catch {
      show("lost", "no answer");
    }
    busy = false;
    if (again) { again = false; renew(); }
  }

  const events = new EventSource("events");
  events.addEventListener("change", renew);
  events.onerror = () => show("lost", "reconnecting");
})();
