/* Search in pages that are opened from a folder, where browsers forbid workers: the search runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const base = new URL(url, location.href);
      const waiting = [];
      this.postMessage = (data) => waiting.push(data);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      (document.body || document.documentElement).append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      const load = (address) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, base);
        script.onload = resolve;
        script.onerror = reject;
        inside.document.head.append(script);
      });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      const send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      load(base).then(() => {
        this.postMessage = send;
        waiting.forEach(send);
      });
      this.terminate = () => frame.remove();
    }
  };
}
