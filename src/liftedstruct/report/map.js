// The map itself: a camera over the unit square, moved by mouse, fingers and keys, and the image that was chosen.

const STILL = 140; // milliseconds without a change of zoom, after which the picture is painted sharp
const FLIGHT = 550; // milliseconds of a flight to an image, or of a change of view
const SLIP = 5; // pixels that a click may move
const LEAST = 34; // pixels of the chosen image and its neighbours, also among dots
const FEW = 1000; // images of a class that are thumbnails at any zoom when it is searched for
const NEAR = 12; // pixels from a dot that still count as on it
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const darkness = matchMedia("(prefers-color-scheme: dark)");
const ease = (t) => (t < 0.5 ? 4 * t ** 3 : 1 - (2 - 2 * t) ** 3 / 2);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

class Atlas {
  constructor(root) {
    const read = (name) => JSON.parse(root.querySelector(`script.${name}`).textContent);
    const given = read("data");
    const about = read("about");
    this.root = root;
    root.id ||= `lifted-map-${document.querySelectorAll(".lifted-map").length}`;
    this.find = (selector) => root.querySelector(selector);
    this.classes = given.classes;
    this.captions = given.captions;
    this.labels = arrayOf(given.labels);
    this.slots = arrayOf(given.slots);
    this.n = this.labels.length;
    this.given = given.views;
    this.views = [];
    this.sheets = new Sheets(root.querySelectorAll("script.sprites"), about, this.slots);
    this.sheets.onLoad = () => this.ask();
    this.sizes = new Uint32Array(this.classes.length);
    for (const label of this.labels) this.sizes[label] += 1;
    this.canvas = this.find(".plane");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.camera = { x: 0.5, y: 0.5, zoom: 1 }; // what is in the middle, and CSS pixels for the whole map
    this.width = this.height = 0;
    this.image = null; // chosen
    this.over = null; // under the pointer, or nearest to the middle when moved by keys
    this.searched = null; // a class
    this.onlyFailures = false;
    this.flight = this.morph = null;
    this.base = this.layer = this.before = null;
    this.stillSince = 0;
    this.asked = false;
    this.painted = false; // all that is in view, sharp
    this.scene = new Scene(this);
    this.names = new Names(this);
    this.panel = new Panel(root, this);
    this.search = new Search(root, this.classes, this.sizes, (number) => this.searchFor(number));
    this.showView(0);
    this.listen();
    this.find(".note").textContent = `${about.note} ${(about.bytes / 1e6).toFixed(1)} MB.`;
    new ResizeObserver(() => this.resize()).observe(this.find(".stage"));
    this.resize();
  }

  className(i) {
    return this.classes[this.labels[i]];
  }

  // ---- what is seen -------------------------------------------------------------------------------------------------------

  resize() {
    const { clientWidth: width, clientHeight: height } = this.find(".stage");
    const ratio = Math.min(2, devicePixelRatio || 1);
    if (!width || !height || (width === this.width && height === this.height && ratio === this.scene.ratio)) return;
    const first = !this.width;
    const wasWhole = first || Math.abs(Math.log(this.camera.zoom / this.whole())) < 0.01;
    Object.assign(this, { width, height });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.scene.ratio = ratio;
    if (wasWhole) this.camera = { x: 0.5, y: 0.5, zoom: this.whole() };
    this.repaint();
    this.frame(performance.now()); // at once: a canvas that was resized is empty
  }

  whole() {
    return 0.9 * Math.min(this.width, this.height);
  }

  closest() {
    return Math.max(4 * this.whole(), 1024 * Math.sqrt(this.n)); // images that were put apart are apart at this zoom
  }

  // Start again with every tile: other colours, other images or other places.
  repaint() {
    const printing = this.root.classList.contains("printing");
    this.scene.recolour(getComputedStyle(this.root), this.find("select").value, darkness.matches && !printing);
    this.base = this.layer = this.before = null;
    this.names.forget();
    this.ask();
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

  // Which images are hidden, faint or plain.
  choice() {
    const { shown } = this.scene;
    for (let i = 0; i < this.n; i++) {
      const hidden = this.onlyFailures && !this.view.failed(i);
      shown[i] = hidden ? HIDDEN : this.searched === null || this.labels[i] === this.searched ? PLAIN : FAINT;
    }
    this.scene.least = this.searched !== null && this.sizes[this.searched] <= FEW ? 24 : 0;
    const none = this.onlyFailures && !this.view.failures;
    this.find(".message").hidden = !none;
    this.find(".message").textContent = none ? "No failures: the nearest neighbour of every image is of its class." : "";
    if (this.width) this.repaint();
  }

  // Corner of the canvas on the map, in device pixels at the camera's scale.
  corner() {
    const { x, y, zoom } = this.camera;
    const scale = zoom * this.scene.ratio;
    return [Math.round(x * scale - this.canvas.width / 2), Math.round(y * scale - this.canvas.height / 2), scale];
  }

  // Where an image is, in CSS pixels of the canvas.
  place(i, positions = this.positions ?? this.view.positions) {
    const { x, y, zoom } = this.camera;
    return [(positions[2 * i] - x) * zoom + this.width / 2, (positions[2 * i + 1] - y) * zoom + this.height / 2];
  }

  ask() {
    this.painted = false;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      this.frame(now);
    });
  }

  frame(now) {
    if (!this.width) return;
    if (this.flight) this.fly(now);
    if (this.morph ? this.paintMorph(now) : this.paintTiles(now)) this.paintChosen();
    this.sheets.loadWanted();
    if (this.flight || this.morph) this.ask();
  }

  // False if there is too little to show: then the canvas is left as it is.
  paintTiles(now) {
    const { context, canvas, scene } = this;
    const [left, top, scale] = this.corner();
    const [width, height] = [canvas.width, canvas.height];
    const until = performance.now() + (this.base || this.before ? BUDGET : 3 * BUDGET);
    const zoomed = this.layer ? scale / this.layer.scale : 0;
    if (zoomed !== 1) {
      if (scale !== this.lastScale) this.stillSince = now;
      const still = now - this.stillSince >= STILL && !this.flight;
      if (still || zoomed < 0.55 || zoomed > 1.8) {
        if (!this.before || this.layer.covers(left / zoomed, top / zoomed, width / zoomed, height / zoomed)) this.before = this.layer;
        this.layer = new Layer(scene, scale);
      } else if (!this.flight) this.ask();
    }
    this.lastScale = scale;
    const zoom = scale / this.layer.scale;
    let [done, hurry] = this.layer.paint(left / zoom, top / zoom, width / zoom, height / zoom, until);
    if (done) {
      this.before = null;
      this.base ??= new Layer(scene, 2 * TILE); // the whole map, to be under what is not painted yet
      [done, hurry] = this.base.paint(0, 0, this.base.scale, this.base.scale, until);
    }
    if (hurry) this.ask();
    const covered = this.layer.covers(left / zoom, top / zoom, width / zoom, height / zoom);
    if (!covered && !this.base && !this.before) return false;
    context.fillStyle = scene.css.ground;
    context.fillRect(0, 0, width, height);
    if (!covered) {
      this.base?.copy(context, left, top, scale);
      this.before?.copy(context, left, top, scale);
    }
    this.layer.copy(context, left, top, scale);
    if (this.names.scale !== this.layer.scale) this.names.place(this.layer.scale);
    this.names.paint(context, left, top, scale);
    this.painted = done && zoom === 1;
    return true;
  }

  // From one view's places to another's: all images move.
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

  // The chosen image, its neighbours and the one under the pointer lie above all others, with lines to the neighbours.
  paintChosen() {
    const { scene, image, over } = this;
    const side = this.raisedSide() * scene.ratio;
    if (image !== null) {
      const neighbours = [...this.view.neighboursOf(image)].reverse(); // the nearest on top
      const right = (j) => this.labels[j] === this.labels[image];
      const [x, y] = this.place(image).map((value) => value * scene.ratio);
      for (const j of neighbours) {
        const to = this.place(j).map((value) => value * scene.ratio);
        this.line(x, y, ...to, scene.css.ground, 5, right(j));
        this.line(x, y, ...to, scene.css[right(j) ? "right" : "wrong"], 2, right(j));
      }
      for (const j of neighbours) this.raise(j, side, scene.css[right(j) ? "right" : "wrong"], right(j));
      this.raise(image, 1.3 * side, scene.css.ink);
    }
    if (over !== null && over !== image) this.raise(over, 1.1 * side, scene.css.accent);
    this.showCard();
  }

  raisedSide() {
    const { ratio } = this.scene;
    return Math.max(this.scene.side(this.camera.zoom * ratio) / ratio, LEAST);
  }

  line(x, y, toX, toY, colour, width, whole) {
    const { context, scene } = this;
    Object.assign(context, { strokeStyle: colour, lineWidth: width * scene.ratio });
    context.setLineDash(whole ? [] : [7 * scene.ratio, 5 * scene.ratio]);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(toX, toY);
    context.stroke();
    context.setLineDash([]);
  }

  raise(i, side, colour, right = null) {
    const { context, scene } = this;
    const { ratio } = scene;
    const [x, y] = this.place(i).map((value) => Math.round(value * ratio - side / 2));
    const bitmap = this.sheets.peek(i);
    for (const [fill, edge] of [[scene.css.ground, 5], [colour, 3]]) {
      context.fillStyle = fill;
      context.fillRect(x - edge * ratio, y - edge * ratio, side + 2 * edge * ratio, side + 2 * edge * ratio);
    }
    context.imageSmoothingEnabled = true;
    if (bitmap) this.sheets.draw(context, bitmap, i, x, y, side);
    if (right === null) return;
    const r = 7 * ratio;
    const signs = right ? [[-0.45, 0.02, -0.1, 0.38, 0.48, -0.35]] : [[-0.38, -0.38, 0.38, 0.38], [-0.38, 0.38, 0.38, -0.38]];
    context.beginPath();
    context.arc(x, y, r, 0, 7);
    context.fill();
    Object.assign(context, { strokeStyle: scene.css.ground, lineWidth: 2 * ratio });
    context.beginPath();
    for (const [dx, dy, ...rest] of signs) {
      context.moveTo(x + dx * r, y + dy * r);
      for (let c = 0; c < rest.length; c += 2) context.lineTo(x + rest[c] * r, y + rest[c + 1] * r);
    }
    context.stroke();
  }

  showCard() {
    const card = this.find(".card");
    const i = this.over;
    const [x, y] = i === null ? [-1, -1] : this.place(i);
    card.hidden = this.morph !== null || x < 0 || y < 0 || x > this.width || y > this.height;
    if (card.hidden) return;
    if (card.dataset.image !== String(i)) {
      card.dataset.image = i;
      this.sheets.show(card.querySelector("canvas"), i, 144);
      card.querySelector(".class").replaceChildren(...broken(this.className(i)));
      card.querySelector(".caption").replaceChildren(...broken(this.captions[i]));
    }
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    const gap = 18 + this.scene.side(this.camera.zoom * this.scene.ratio) / this.scene.ratio / 2;
    const left = x + gap + width <= this.width ? x + gap : x - gap - width;
    card.style.transform = `translate(${Math.round(clamp(left, 4, Math.max(4, this.width - width - 4)))}px, ${Math.round(
      clamp(y - height / 2, 4, Math.max(4, this.height - height - 4)),
    )}px)`;
  }

  // ---- moving -------------------------------------------------------------------------------------------------------------

  setCamera(x, y, zoom) {
    this.flight = null;
    this.camera = { x: clamp(x, 0, 1), y: clamp(y, 0, 1), zoom: clamp(zoom, this.whole() / 2, this.closest()) };
    this.ask();
  }

  pan(dx, dy) {
    const { x, y, zoom } = this.camera;
    this.setCamera(x - dx / zoom, y - dy / zoom, zoom);
  }

  // Zoom so that what is at (px, py) stays there.
  zoomAt(px, py, factor) {
    const { x, y, zoom } = this.camera;
    const next = clamp(zoom * factor, this.whole() / 2, this.closest());
    const [dx, dy] = [px - this.width / 2, py - this.height / 2];
    this.setCamera(x + dx / zoom - dx / next, y + dy / zoom - dy / next, next);
  }

  flyTo(x, y, zoom) {
    const to = { x: clamp(x, 0, 1), y: clamp(y, 0, 1), zoom: clamp(zoom, this.whole() / 2, this.closest()) };
    if (calm.matches) return this.setCamera(to.x, to.y, to.zoom);
    this.flight = { from: { ...this.camera }, to, start: null };
    return this.ask();
  }

  fly(now) {
    const { from, to } = this.flight;
    this.flight.start ??= now;
    const t = ease(clamp((now - this.flight.start) / FLIGHT, 0, 1));
    const zoom = from.zoom * (to.zoom / from.zoom) ** t;
    // Along the way the middle moves as the scale does, so that a flight into the map goes straight to its end.
    const part = Math.abs(to.zoom - from.zoom) < 1e-6 * to.zoom ? t : (1 / from.zoom - 1 / zoom) / (1 / from.zoom - 1 / to.zoom);
    this.camera = { x: from.x + part * (to.x - from.x), y: from.y + part * (to.y - from.y), zoom };
    if (t === 1) {
      this.camera = to;
      this.flight = null;
    }
  }

  zoomStep(factor) {
    const { x, y, zoom } = this.flight?.to ?? this.camera;
    this.flyTo(x, y, zoom * factor);
  }

  showWhole() {
    this.flyTo(0.5, 0.5, this.whole());
  }

  // The image at a point of the canvas: one that lies above the others, of thumbnails the uppermost, of dots the nearest.
  hit(px, py, reach = NEAR) {
    const raised = this.image === null ? [] : [this.image, ...this.view.neighboursOf(this.image)];
    for (const i of raised) {
      const [x, y] = this.place(i);
      if (Math.max(Math.abs(px - x), Math.abs(py - y)) <= (this.raisedSide() / 2) * (i === this.image ? 1.3 : 1)) return i;
    }
    const { x, y, zoom } = this.camera;
    const { positions, grid } = this.view;
    const half = this.scene.thumbnails(zoom * this.scene.ratio) ? this.scene.side(zoom * this.scene.ratio) / this.scene.ratio / 2 : 0;
    const [wx, wy] = [x + (px - this.width / 2) / zoom, y + (py - this.height / 2) / zoom];
    const room = Math.max(half, reach) / zoom;
    let [best, least] = [null, Infinity];
    for (const i of grid.within(wx - room, wy - room, wx + room, wy + room)) {
      const shown = this.scene.shown[i];
      if (shown === HIDDEN) continue;
      const [dx, dy] = [Math.abs(positions[2 * i] - wx) * zoom, Math.abs(positions[2 * i + 1] - wy) * zoom];
      const inside = shown === PLAIN && Math.max(dx, dy) <= half;
      const far = Math.hypot(dx, dy);
      if (!inside && far > reach) continue;
      const score = inside ? -1 - this.slots[i] : shown === PLAIN ? far : 1e6 + far;
      if (score < least) [best, least] = [i, score];
    }
    return best;
  }

  // ---- choosing -----------------------------------------------------------------------------------------------------------

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
        const seen = (1.6 * SMALLEST * Math.sqrt(this.n)) / FILL; // a scale at which it is a thumbnail
        this.flyTo(positions[2 * i], positions[2 * i + 1], Math.max(this.camera.zoom, Math.min(seen, this.closest())));
      }
    }
    this.say(i === null ? "Nothing chosen." : this.panel.spoken(i));
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
    const fits = 0.8 * Math.min(this.width / Math.max(right - left, 1e-9), this.height / Math.max(bottom - top, 1e-9));
    this.flyTo((left + right) / 2, (top + bottom) / 2, Math.min(fits, Math.max(seen, this.whole())));
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
    this.flight = null;
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

  // ---- mouse, fingers, keys -----------------------------------------------------------------------------------------------

  listen() {
    const on = (selector, type, action) => this.find(selector).addEventListener(type, action);
    this.listenToPointers();
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.canvas.addEventListener("blur", () => this.point(null));
    this.canvas.setAttribute(
      "aria-label",
      `Map of ${counted(this.n, "image", "images")}. Arrow keys move it, plus and minus zoom, 0 shows all of it, ` +
        "Enter chooses the image nearest to the centre, Escape lets go of it.",
    );
    on(".in", "click", () => this.zoomStep(2));
    on(".out", "click", () => this.zoomStep(1 / 2));
    on(".whole", "click", () => this.showWhole());
    on(".failures", "click", () => this.filter(!this.onlyFailures));
    on("select", "change", () => this.repaint());
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && this.image !== null) {
        this.choose(null);
        this.canvas.focus({ preventScroll: true });
      }
    });
    if (this.given.length > 1) this.offerViews();
    darkness.addEventListener("change", () => this.repaint());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
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

  listenToPointers() {
    const { canvas } = this;
    const fingers = new Map();
    let [pressed, moved] = [null, false];
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const middle = () => {
      const all = [...fingers.values()];
      const [x, y] = [0, 1].map((c) => all.reduce((sum, finger) => sum + finger[c], 0) / all.length);
      return [x, y, all.length > 1 ? Math.hypot(all[0][0] - all[1][0], all[0][1] - all[1][1]) : 0];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("held");
      fingers.set(event.pointerId, at(event));
      if (fingers.size === 1) [pressed, moved] = [at(event), false];
      else moved = true;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) {
        if (event.pointerType === "mouse" && !this.morph) this.point(this.hit(...at(event)));
        return;
      }
      const [x, y, spread] = middle();
      fingers.set(event.pointerId, at(event));
      const [toX, toY, wider] = middle();
      if (!moved && Math.hypot(toX - pressed[0], toY - pressed[1]) <= SLIP) {
        fingers.set(event.pointerId, pressed);
        return;
      }
      moved = true;
      this.point(null);
      this.pan(toX - x, toY - y);
      if (spread && wider) this.zoomAt(toX, toY, wider / spread);
    });
    const lift = (event) => {
      if (!fingers.delete(event.pointerId) || fingers.size) return;
      canvas.classList.remove("held");
      if (!moved && event.type === "pointerup") this.choose(this.hit(...at(event), event.pointerType === "mouse" ? NEAR : 2 * NEAR));
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => !fingers.size && this.point(null));
    canvas.addEventListener("dblclick", (event) => {
      const [px, py] = at(event);
      const { x, y, zoom } = this.camera;
      const [dx, dy] = [(px - this.width / 2) / zoom, (py - this.height / 2) / zoom];
      this.flyTo(x + dx / 2, y + dy / 2, 2 * zoom);
    });
    let scrolled = -Infinity; // a page that is being scrolled is not caught by the map it happens to pass
    addEventListener("scroll", () => (scrolled = performance.now()), { passive: true });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (performance.now() - scrolled < 250 && !event.ctrlKey) {
          scrolled = performance.now();
          return;
        }
        event.preventDefault();
        const pixels = event.deltaY * [1, 16, this.height][event.deltaMode];
        this.zoomAt(...at(event), Math.exp(-clamp(pixels, -300, 300) * (event.ctrlKey ? 0.01 : 0.002)));
      },
      { passive: false },
    );
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 0.15 * Math.min(this.width, this.height) * (event.shiftKey ? 4 : 1);
    const actions = {
      ArrowLeft: () => this.pan(step, 0),
      ArrowRight: () => this.pan(-step, 0),
      ArrowUp: () => this.pan(0, step),
      ArrowDown: () => this.pan(0, -step),
      "+": () => this.zoomAt(this.width / 2, this.height / 2, 1.5),
      "=": () => this.zoomAt(this.width / 2, this.height / 2, 1.5),
      "-": () => this.zoomAt(this.width / 2, this.height / 2, 1 / 1.5),
      _: () => this.zoomAt(this.width / 2, this.height / 2, 1 / 1.5),
      0: () => this.setCamera(0.5, 0.5, this.whole()),
      Enter: () => this.choose(this.central(), { focus: true }),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
    if (event.key === "Enter") return;
    this.point(this.central());
    if (this.over !== null) this.say(`Nearest to the centre: ${this.captions[this.over]}, class ${this.className(this.over)}.`);
  }

  central() {
    return this.hit(this.width / 2, this.height / 2, Math.max(this.width, this.height));
  }

  // On paper the map is as it is now, on white.
  print(on) {
    this.root.classList.toggle("printing", on);
    this.over = null;
    this.repaint();
    for (let tries = 0; tries < 200 && !this.painted; tries++) this.frame(performance.now() + tries * STILL);
  }
}

const root = document.currentScript.closest(".lifted-map");
root.atlas = new Atlas(root);
