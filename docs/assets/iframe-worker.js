// Browsers refuse `new Worker` on pages opened from a folder (file://). There, run the worker's script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      const load = address => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = address
        script.onload = done
        script.onerror = failed
        inside.document.head.appendChild(script)
      })
      // the script waits for its imports where it runs `importScripts`; frames can only promise them
      inside.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = load(url)
      this.inside = inside
      this.frame = frame
      this.addEventListener("message", event => this.onmessage && this.onmessage(event))
    }

    postMessage(data) {
      this.ready = this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() { this.frame.remove() }
  }
}
