// Lasso: a polygon drawn with mouse or finger, or all that is in view.

import { counted } from "./cards.js";

const STEP = 4; // pixels between points of the polygon
const SVG = "http://www.w3.org/2000/svg";

export class Lasso {
  constructor(atlas) {
    Object.assign(this, { atlas, points: [], control: atlas.find(".select-area") });
    this.layer = document.createElementNS(SVG, "svg");
    this.layer.setAttribute("class", "lasso");
    this.layer.setAttribute("aria-hidden", "true");
    this.line = this.layer.appendChild(document.createElementNS(SVG, "polygon"));
    this.layer.toggleAttribute("hidden", true);
    atlas.find(".zoom").before(this.layer);
    this.control.addEventListener("click", () => (this.active ? this.stop() : this.begin()));
    atlas.root.addEventListener("keydown", (event) => this.onKey(event), { capture: true, signal: atlas.ending.signal });
    for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
      this.layer.addEventListener(type, (event) => this[type](event));
    }
  }

  get active() {
    return !this.layer.hasAttribute("hidden");
  }

  begin() {
    this.layer.toggleAttribute("hidden", false);
    this.control.setAttribute("aria-pressed", "true");
    this.atlas.canvas.focus({ preventScroll: true });
    this.atlas.say("Lasso: draw around items, or press Enter for all in view. Escape ends it.");
  }

  stop() {
    this.layer.toggleAttribute("hidden", true);
    this.control.setAttribute("aria-pressed", "false");
    this.draw([]);
  }

  onKey(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(target.tagName)) return;
    const { width, height } = this.atlas.camera;
    if (key.toLowerCase() === "l") {
      if (this.active) this.stop();
      else this.begin();
    } else if (key === "Enter" && this.active && target === this.atlas.canvas) {
      this.select([[0, 0], [width, 0], [width, height], [0, height]]);
    } else if (key === "Escape" && this.active) this.stop();
    else if (key === "Escape" && this.atlas.lassoed) this.clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  at(event) {
    const box = this.layer.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  pointerdown(event) {
    if (event.button !== 0 || this.pointer !== undefined) return;
    if (event.isTrusted) this.layer.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    this.draw([this.at(event)]);
  }

  pointermove(event) {
    if (event.pointerId !== this.pointer) return;
    const [point, last] = [this.at(event), this.points.at(-1)];
    if (Math.hypot(point[0] - last[0], point[1] - last[1]) >= STEP) this.draw([...this.points, point]);
  }

  pointerup(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = undefined;
    if (this.points.length > 3) this.select(this.points);
    else this.draw([]);
  }

  pointercancel() {
    this.pointer = undefined;
    this.draw([]);
  }

  draw(points) {
    this.points = points;
    this.line.setAttribute("points", points.map((point) => point.map(Math.round).join()).join(" "));
  }

  async select(points) {
    const { atlas } = this;
    const clamped = (value) => Math.min(2, Math.max(-1, value));
    const some = points.filter((_, at) => at % Math.ceil(points.length / 2000) === 0);
    const polygon = some.map((point) => atlas.camera.unplace(...point).map(clamped));
    try {
      const found = await atlas.app.api.post(`map/lasso${atlas.app.api.query({ version: atlas.view.version })}`, { polygon });
      this.stop();
      if (!found.rows.length) return atlas.say("No items in the lasso.");
      if (atlas.searched !== null) atlas.search.choose(null);
      atlas.image = null;
      atlas.lassoed = true;
      atlas.selected = found.rows;
      atlas.choice();
      atlas.panel.showSelection(found);
      atlas.canvas.focus({ preventScroll: true });
      return atlas.say(`${counted(found.rows.length, "item", "items")} of ${counted(found.different, "class", "classes")} selected.`);
    } catch (error) {
      this.stop();
      return atlas.app.fail(error);
    }
  }

  clear() {
    const { atlas } = this;
    Object.assign(atlas, { lassoed: false, selected: null });
    atlas.panel.clear();
    atlas.choice();
    atlas.say("Nothing selected.");
  }
}
