// A clock that stands still until it is told to go on: what a page does by timers, dates and frames is then the
// same however fast the machine is. Installed before a page's own scripts; only the top window has it.
(() => {
  if (window !== window.top || window.__clock) return;
  const real = {
    Date, setTimeout, clearTimeout, setInterval, clearInterval, requestAnimationFrame, cancelAnimationFrame,
  };
  const START = Date.UTC(2025, 0, 1, 12);
  const FRAME = 16;  // ms
  const MOST = 20000;  // callbacks in one advance: a page whose timers never stop must not hang the world
  let now = START;
  let next = 1;
  const due = new Map();  // id -> {at, every, call}; a Map keeps the order of insertion

  const callback = (handler, args) => (typeof handler === "function" ? () => handler(...args) : () => (0, eval)(handler));
  const add = (delay, every, call) => {
    const id = next++;
    due.set(id, {at: now + Math.max(1, Number(delay) || 0), every, call});
    return id;
  };
  const virtual = {
    Date: new Proxy(real.Date, {
      construct: (target, args, made) => Reflect.construct(target, args.length ? args : [now], made),
      apply: () => new real.Date(now).toString(),
      get: (target, key) => (key === "now" ? () => now : Reflect.get(target, key)),
    }),
    setTimeout: (handler, delay, ...args) => add(delay, null, callback(handler, args)),
    setInterval: (handler, delay, ...args) => add(delay, Math.max(1, Number(delay) || 0), callback(handler, args)),
    clearTimeout: (id) => void due.delete(id),
    clearInterval: (id) => void due.delete(id),
    requestAnimationFrame: (handler) =>
      add(FRAME - ((now - START) % FRAME), null, () => handler(now - START)),
    cancelAnimationFrame: (id) => void due.delete(id),
  };
  performance.now = () => now - START;
  const put = (functions) => Object.assign(window, functions);

  const advance = async (milliseconds) => {
    const end = now + milliseconds;
    for (let calls = 0; calls < MOST; calls++) {
      let id = null;
      for (const [key, timer] of due) if (timer.at <= end && (id === null || timer.at < due.get(id).at)) id = key;
      if (id === null) break;
      const timer = due.get(id);
      now = timer.at;
      due.delete(id);
      if (timer.every !== null) due.set(id, {...timer, at: now + timer.every});
      try {
        timer.call();
      } catch (error) {
        console.error(error);  // as an uncaught error in a timer: the other timers go on
      }
      await null;  // what it promised is done before the next one
    }
    now = end;
  };
  put(virtual);
  window.__clock = Object.freeze({advance, real: () => put(real), virtual: () => put(virtual)});
})();
