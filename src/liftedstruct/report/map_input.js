// Mouse, touch and keyboard.

import { clamp } from "./map_camera.js";

const SLIP = 5; // maximum movement of a click in pixels
export const NEAR = 12; // pixels around a dot that count as a hit
const PASSING = 250; // milliseconds after a scroll of the page in which the wheel keeps scrolling it

// Drag and pinch, hover and click.
export function listenToPointers(atlas) {
  const { canvas, camera } = atlas;
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
      if (event.pointerType === "mouse" && !atlas.morph) atlas.point(atlas.hit(...at(event)));
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
    atlas.point(null);
    camera.pan(toX - x, toY - y);
    if (spread && wider) camera.zoomAt(toX, toY, wider / spread);
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId) || fingers.size) return;
    canvas.classList.remove("held");
    if (moved || event.type !== "pointerup") return;
    atlas.choose(atlas.hit(...at(event), event.pointerType === "mouse" ? NEAR : 2 * NEAR));
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => !fingers.size && atlas.point(null));
  canvas.addEventListener("dblclick", (event) => {
    const [x, y] = camera.unplace(...at(event));
    camera.flyTo((camera.x + x) / 2, (camera.y + y) / 2, 2 * camera.zoom);
  });
  listenToWheel(canvas, camera, at, atlas.ending.signal);
}

// The wheel zooms, unless the page is being scrolled past the map.
function listenToWheel(canvas, camera, at, signal) {
  let scrolled = -Infinity;
  addEventListener("scroll", () => (scrolled = performance.now()), { passive: true, signal });
  const onWheel = (event) => {
    if (performance.now() - scrolled < PASSING && !event.ctrlKey) {
      scrolled = performance.now();
      return;
    }
    event.preventDefault();
    const pixels = event.deltaY * [1, 16, camera.height][event.deltaMode];
    const rate = event.ctrlKey ? 0.01 : 0.002; // a touchpad pinch is reported as a wheel event with the Ctrl key
    camera.zoomAt(...at(event), Math.exp(-clamp(pixels, -300, 300) * rate));
  };
  canvas.addEventListener("wheel", onWheel, { passive: false });
}

export function listenToKeys(atlas) {
  const { canvas, camera } = atlas;
  const closer = () => camera.zoomAtMiddle(1.5);
  const farther = () => camera.zoomAtMiddle(1 / 1.5);
  const actions = {
    ArrowLeft: (step) => camera.pan(step, 0),
    ArrowRight: (step) => camera.pan(-step, 0),
    ArrowUp: (step) => camera.pan(0, step),
    ArrowDown: (step) => camera.pan(0, -step),
    "+": closer,
    "=": closer,
    "-": farther,
    _: farther,
    0: () => camera.set(0.5, 0.5, camera.whole()),
    Enter: () => atlas.choose(atlas.central(), { focus: true }),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action(0.15 * Math.min(camera.width, camera.height) * (event.shiftKey ? 4 : 1));
    if (event.key !== "Enter") atlas.pointAtMiddle();
  });
  canvas.addEventListener("blur", () => atlas.point(null));
  atlas.root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || atlas.image === null) return;
    atlas.choose(null);
    canvas.focus({ preventScroll: true });
  }, { signal: atlas.ending.signal });
}
