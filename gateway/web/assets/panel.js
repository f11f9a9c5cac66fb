// A panel over the page that shows what the address names, for as long as it names it: so it can be linked to, and the browser's
// way back closes it.

export class Panel extends HTMLElement {
  // A subclass has subjectIn(hash), what an address names or null, and opened(), which draws it for the first time.

  connectedCallback() {
    this.hidden = true;
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", ({ key }) => key === "Escape" && !this.hidden && this.close());
    this.addEventListener("click", ({ target }) => target.closest("[data-do=close]") && this.close());
    this.follow();
  }

  follow() {
    const subject = this.subjectIn(location.hash);
    if (subject === this.subject) return;
    this.subject = subject;
    this.changed?.(subject);
    if (subject === null) {
      this.hidden = true;
      this.opener?.focus({ preventScroll: true });
      return;
    }
    if (this.hidden) this.opener = document.activeElement;
    this.hidden = false;
    this.opened();
    this.querySelector("h2").focus({ preventScroll: true });
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    this.follow();
  }
}
