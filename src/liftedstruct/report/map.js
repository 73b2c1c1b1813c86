// The map: data, selection, and drawing a frame whenever something changes.

import { Camera, FLIGHT, calm, clamp, ease } from "./map_camera.js";
import { Chosen } from "./map_chosen.js";
import { View } from "./map_data.js";
import { NEAR, listenToKeys, listenToPointers } from "./map_input.js";
import { Names } from "./map_names.js";
import { Panel, Search, classesOf, counted, element, named } from "./map_panel.js";
import { BUDGET, FAINT, FILL, HIDDEN, Layer, PLAIN, SMALLEST, Scene, TILE } from "./map_picture.js";

const STILL = 140; // milliseconds without a zoom change after which the map is drawn sharp
const FEW = 1000; // maximum size of a class whose images are thumbnails at any zoom when it is searched for
export const darkness = matchMedia("(prefers-color-scheme: dark)");

export class Atlas {
  // The content is that of `contentOf`; a subclass may load it instead.
  constructor(root, content) {
    Object.assign(this, { root }, content);
    root.id ||= `lifted-map-${document.querySelectorAll(".lifted-map").length}`;
    this.find = (selector) => root.querySelector(selector);
    this.ending = new AbortController(); // of what listens outside of the content
    this.sheets.onLoad = () => this.ask();
    this.canvas = this.find(".plane");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.camera = new Camera(this.n, () => this.ask());
    this.image = null; // selected
    this.over = null; // under the pointer, or closest to the center when moved by keys
    this.searched = null; // class
    this.onlyFailures = false;
    this.morph = null; // transition between two views
    this.base = this.layer = this.before = null;
    this.stillSince = 0;
    this.asked = false;
    this.painted = false; // whether everything in view is drawn sharp
    this.chosen = new Chosen(this);
    this.makeParts();
    this.listen();
    this.sizing = new ResizeObserver(() => this.resize());
    this.sizing.observe(this.find(".stage"));
    this.resize();
  }

  // Call before the content is replaced.
  end() {
    this.ended = true;
    this.ending.abort();
    this.sizing.disconnect();
  }

  makeParts() {
    const { root, about } = this;
    this.scene = new Scene(this);
    this.names = new Names(this);
    this.panel = new Panel(root, this);
    this.search = new Search(root, classesOf(this.classes, this.sizes), (number) => this.searchFor(number));
    this.showView(0);
    this.listenToBar();
    this.find(".note").textContent = `${about.note} ${(about.bytes / 1e6).toFixed(1)} MB.`;
  }

  caption(i) {
    return this.captions[i];
  }

  className(i) {
    return this.classes[this.labels[i]];
  }

  // Kinds of the neighbors of an image: right, wrong, or rest for another class after all images of its own class.
  kindsOf(i) {
    let left = this.sizes[this.labels[i]] - 1;
    return Array.from(this.view.neighborsOf(i), (j) => {
      if (this.labels[j] === this.labels[i]) left -= 1;
      return this.labels[j] === this.labels[i] ? "right" : left > 0 ? "wrong" : "rest";
    });
  }

  // ---- drawing ------------------------------------------------------------------------------------------------------------

  resize() {
    const { clientWidth: width, clientHeight: height } = this.find(".stage");
    const ratio = Math.min(2, devicePixelRatio || 1);
    const same = width === this.camera.width && height === this.camera.height && ratio === this.scene.ratio;
    if (!width || !height || same) return;
    this.camera.resize(width, height);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.scene.ratio = ratio;
    this.repaint();
    this.frame(performance.now()); // at once, since resizing clears the canvas
  }

  // Redraw every tile after a change of colors, images or positions.
  repaint() {
    const printing = this.root.classList.contains("printing");
    this.scene.recolor(getComputedStyle(this.root), this.coloring(), darkness.matches && !printing);
    this.base = this.layer = this.before = null;
    this.names.forget();
    this.ask();
  }

  coloring() {
    return this.find("select").value;
  }

  showView(number) {
    this.number = number;
    this.view = this.views[number] ??= new View(this.given[number], this.labels);
    const recall = this.view.queries ? `, Recall@1 ${(100 * (1 - this.view.failures / this.view.queries)).toFixed(1)} %` : "";
    this.find(".counts").textContent =
      `${counted(this.n, "image", "images")} of ${counted(this.classes.length, "class", "classes")}${recall}.`;
    this.find(".failures").textContent = `Failures only (${this.view.failures.toLocaleString("en")})`;
    this.choice();
  }

  // Set which images are hidden, faint or plain.
  choice() {
    const { shown } = this.scene;
    for (let i = 0; i < this.n; i++) {
      const hidden = this.onlyFailures && !this.view.failed(i);
      shown[i] = hidden ? HIDDEN : this.searched === null || this.labels[i] === this.searched ? PLAIN : FAINT;
    }
    this.scene.least = this.searched !== null && this.sizes[this.searched] <= FEW ? 24 : 0;
    const none = this.onlyFailures && !this.view.failures;
    this.find(".message").hidden = !none;
    this.find(".message").textContent = none ? "No failures: the nearest neighbor of every query is of the same class." : "";
    if (this.camera.width) this.repaint();
  }

  // Return the corner of the canvas on the map, in device pixels at the camera's scale, and the scale.
  corner() {
    const { x, y, zoom } = this.camera;
    const scale = zoom * this.scene.ratio;
    return [Math.round(x * scale - this.canvas.width / 2), Math.round(y * scale - this.canvas.height / 2), scale];
  }

  // Return the position of an image in CSS pixels of the canvas.
  place(i) {
    const positions = this.positions ?? this.view.positions;
    return this.camera.place(positions[2 * i], positions[2 * i + 1]);
  }

  ask() {
    this.painted = false;
    if (this.asked || this.ended) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      if (!this.ended) this.frame(now);
    });
  }

  frame(now) {
    const { camera } = this;
    if (!camera.width) return;
    if (camera.flight) camera.fly(now);
    if (this.morph ? this.paintMorph(now) : this.paintTiles(now)) this.chosen.paint();
    this.sheets.loadWanted();
    if (camera.flight || this.morph) this.ask();
  }

  // Draw the tiles in view and, below missing tiles, the previous layer or the whole map in dots. Returns false, without
  // drawing, if there is too little to show.
  paintTiles(now) {
    const { context, canvas, scene } = this;
    const [left, top, scale] = this.corner();
    const { width, height } = canvas;
    const until = performance.now() + (this.base || this.before ? BUDGET : 3 * BUDGET);
    if (scale !== this.layer?.scale) this.startLayer(now, left, top, scale);
    const zoom = scale / this.layer.scale;
    const part = [left / zoom, top / zoom, width / zoom, height / zoom];
    let [done, hurry] = this.layer.paint(...part, until);
    if (done) {
      this.before = null;
      this.base ??= new Layer(scene, 2 * TILE, true);
      [done, hurry] = this.base.paint(0, 0, this.base.scale, this.base.scale, until);
    }
    if (hurry) this.ask();
    const covered = this.layer.covers(...part);
    if (!covered && !this.base && !this.before) return false;
    context.fillStyle = scene.css.ground;
    context.fillRect(0, 0, width, height);
    if (!covered) {
      this.base?.copy(context, left, top, scale);
      this.before?.copy(context, left, top, scale);
    }
    this.layer.copy(context, left, top, scale);
    if (this.names.isDue(...part.slice(0, 2), this.layer.scale)) this.names.place(this.layer.scale);
    this.names.paint(context, left, top, scale);
    this.painted = done && zoom === 1;
    return true;
  }

  // Start tiles of another scale once the zoom is at rest, or has changed so much that the old tiles look blurred.
  startLayer(now, left, top, scale) {
    const zoom = this.layer ? scale / this.layer.scale : 0;
    if (scale !== this.lastScale) this.stillSince = now;
    this.lastScale = scale;
    const still = now - this.stillSince >= STILL && !this.camera.flight;
    if (still || zoom < 0.55 || zoom > 1.8) {
      const { width, height } = this.canvas;
      if (!this.before || this.layer.covers(left / zoom, top / zoom, width / zoom, height / zoom)) this.before = this.layer;
      this.layer = new Layer(this.scene, scale);
    } else this.ask();
  }

  // Draw the transition from one view to another: all images move.
  paintMorph(now) {
    const { scene, context, canvas, morph } = this;
    morph.start ??= now;
    const t = ease(clamp((now - morph.start) / FLIGHT, 0, 1));
    const to = this.view.positions;
    for (let c = 0; c < to.length; c++) this.positions[c] = morph.from[c] + t * (to[c] - morph.from[c]);
    if (morph.held !== null) {
      this.camera.x = this.positions[2 * morph.held] - morph.offset[0];
      this.camera.y = this.positions[2 * morph.held + 1] - morph.offset[1];
    }
    const [left, top, scale] = this.corner();
    const big = scene.thumbnails(scale);
    scene.paintDots(context, canvas.width, canvas.height, morph.images, this.positions, left, top, scale, big ? FAINT : 0);
    if (big) this.paintMoving(left, top, scale);
    if (t === 1) {
      this.morph = this.positions = null;
      this.repaint();
    }
    return true;
  }

  paintMoving(left, top, scale) {
    const { scene, context, canvas, positions, sheets } = this;
    const side = Math.round(scene.side(scale));
    for (const i of this.morph.images) {
      if (scene.shown[i] !== PLAIN) continue;
      const x = Math.round(positions[2 * i] * scale - left - side / 2);
      const y = Math.round(positions[2 * i + 1] * scale - top - side / 2);
      if (x < -side || y < -side || x > canvas.width || y > canvas.height) continue;
      const bitmap = sheets.peek(i);
      if (bitmap) scene.paintThumbnail(context, bitmap, i, x, y, side);
      else scene.frame(context, i, x, y, side);
    }
  }

  // Return the image at a point of the canvas: a raised image, else the topmost thumbnail, else the closest dot.
  hit(px, py, reach = NEAR) {
    const above = this.chosen.hit(px, py);
    if (above !== null) return above;
    const { scene, camera } = this;
    const { positions, grid } = this.view;
    const { zoom } = camera;
    const half = scene.thumbnails(zoom * scene.ratio) ? scene.side(zoom * scene.ratio) / scene.ratio / 2 : 0;
    const pictured = scene.pictured(zoom * scene.ratio, half > 0);
    const [wx, wy] = camera.unplace(px, py);
    const room = Math.max(half, reach) / zoom;
    let [best, least] = [null, Infinity];
    for (const i of grid.within(wx - room, wy - room, wx + room, wy + room, zoom * scene.ratio, half > 0)) {
      const shown = scene.shown[i];
      if (shown === HIDDEN) continue;
      const [dx, dy] = [Math.abs(positions[2 * i] - wx) * zoom, Math.abs(positions[2 * i + 1] - wy) * zoom];
      const inside = Math.max(dx, dy) <= half && pictured(i);
      const far = Math.hypot(dx, dy);
      if (!inside && far > reach) continue;
      const score = inside ? -1 - this.slots[i] : shown === PLAIN ? far : 1e6 + far;
      if (score < least) [best, least] = [i, score];
    }
    return best;
  }

  // ---- selection ----------------------------------------------------------------------------------------------------------

  point(i) {
    if (i === this.over) return;
    this.over = i;
    this.ask();
  }

  choose(i, { go = false, focus = false } = {}) {
    this.image = i;
    this.over = null;
    if (i === null) this.panel.clear();
    else {
      this.panel.show(i);
      if (focus) this.panel.chosen.querySelector("ol button")?.focus({ preventScroll: true });
      if (go) {
        const { positions } = this.view;
        const seen = (1.6 * SMALLEST * Math.sqrt(this.n)) / FILL; // scale at which it is a thumbnail
        this.camera.flyTo(positions[2 * i], positions[2 * i + 1], Math.max(this.camera.zoom, seen));
      }
    }
    this.say(i === null ? "Nothing selected." : this.panel.spoken(i));
    this.ask();
  }

  say(text) {
    this.find(".live").textContent = text;
  }

  searchFor(number) {
    this.searched = number;
    this.choice();
    if (number === null) return this.say("All classes are shown.");
    const { positions } = this.view;
    let [left, top, right, bottom] = [1, 1, 0, 0];
    for (let i = 0; i < this.n; i++) {
      if (this.labels[i] !== number) continue;
      [left, right] = [Math.min(left, positions[2 * i]), Math.max(right, positions[2 * i])];
      [top, bottom] = [Math.min(top, positions[2 * i + 1]), Math.max(bottom, positions[2 * i + 1])];
    }
    const seen = (3 * SMALLEST * Math.sqrt(this.n)) / FILL;
    const { camera } = this;
    const fits = 0.8 * Math.min(camera.width / Math.max(right - left, 1e-9), camera.height / Math.max(bottom - top, 1e-9));
    camera.flyTo((left + right) / 2, (top + bottom) / 2, Math.min(fits, Math.max(seen, camera.whole())));
    return this.say(`${counted(this.sizes[number], "image", "images")} of class ${this.classes[number]} shown.`);
  }

  filter(on) {
    this.onlyFailures = on;
    this.find(".failures").setAttribute("aria-pressed", String(on));
    this.over = null;
    this.choice();
    const { failures } = this.view;
    if (!on) this.say("All images are shown.");
    else this.say(failures ? `${counted(failures, "failure", "failures")} shown.` : this.find(".message").textContent);
  }

  switchTo(number) {
    const from = Float32Array.from(this.positions ?? this.view.positions);
    this.over = null;
    this.camera.flight = null;
    this.showView(number);
    if (this.image !== null) this.panel.show(this.image);
    this.say(`Map of ${this.view.name}. ${this.find(".counts").textContent}`);
    const held = this.image;
    const offset = held === null ? null : [from[2 * held] - this.camera.x, from[2 * held + 1] - this.camera.y];
    const images = Uint32Array.from(this.slots.keys()).sort((i, j) => this.slots[i] - this.slots[j]);
    this.positions = from.slice();
    this.morph = { from, held, offset, images, start: calm.matches ? -Infinity : null };
    this.ask();
  }

  // ---- mouse, touch, keyboard ---------------------------------------------------------------------------------------------

  listen() {
    listenToPointers(this);
    listenToKeys(this);
    this.canvas.setAttribute(
      "aria-label",
      `Map of ${counted(this.n, "image", "images")}. Arrow keys move it, plus and minus zoom, 0 shows all of it, ` +
        "Enter selects the image closest to the center, Escape deselects it.",
    );
    this.on(".in", "click", () => this.camera.flyCloser(2));
    this.on(".out", "click", () => this.camera.flyCloser(1 / 2));
    this.on(".whole", "click", () => this.camera.flyOut());
    const { signal } = this.ending;
    darkness.addEventListener("change", () => this.repaint(), { signal });
    addEventListener("beforeprint", () => this.print(true), { signal });
    addEventListener("afterprint", () => this.print(false), { signal });
  }

  listenToBar() {
    this.on(".failures", "click", () => this.filter(!this.onlyFailures));
    this.on("select", "change", () => this.repaint());
    if (this.given.length > 1) this.offerViews();
  }

  on(selector, type, action) {
    this.find(selector).addEventListener(type, action);
  }

  offerViews() {
    const views = this.find(".views");
    this.given.forEach(({ name }, number) => {
      const input = element("input");
      Object.assign(input, { type: "radio", name: `${this.root.id}-view`, value: number, checked: number === 0 });
      input.addEventListener("change", () => this.switchTo(number));
      views.append(element("label", "", input, named("", name)));
    });
    views.hidden = false;
  }

  central() {
    const { width, height } = this.camera;
    return this.hit(width / 2, height / 2, Math.max(width, height));
  }

  // With the keyboard, the image at the center counts as pointed at.
  pointAtMiddle() {
    this.point(this.central());
    if (this.over !== null) this.say(`Closest to the center: ${this.caption(this.over)}, class ${this.className(this.over)}.`);
  }

  // Print the map in its current state, on white.
  print(on) {
    this.root.classList.toggle("printing", on);
    this.over = null;
    this.repaint();
    for (let tries = 0; tries < 200 && !this.painted; tries++) this.frame(performance.now() + tries * STILL);
  }
}
