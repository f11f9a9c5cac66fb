package web_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

// loadLimit is for a machine that does other work, too.
const loadLimit = 3 * time.Minute

// recorder notes long tasks and the time between frames from now on.
const recorder = `new Promise((done) => {
  window.longest = 0;
  new PerformanceObserver((list) => list.getEntries().forEach(({ duration }) => (window.longest = Math.max(window.longest, duration)))).observe({ entryTypes: ["longtask"] });
  const frames = [];
  const end = performance.now() + 10000;
  let last = 0;
  requestAnimationFrame(function frame(now) {
    if (last) frames.push(now - last);
    last = now;
    if (now < end) return requestAnimationFrame(frame);
    frames.sort((a, b) => a - b);
    done([frames[Math.floor(frames.length * 0.5)], frames[Math.floor(frames.length * 0.95)], frames.at(-1), window.longest].map((ms) => ms.toFixed(1)).join(" "));
  });
})`

// typing searches for a Node in the list and returns the milliseconds until its line is drawn.
const typing = `new Promise((done) => {
  const nodes = document.querySelector("trivet-nodes");
  nodes.querySelector("[data-as=table]").click();
  setTimeout(() => {
    const field = nodes.querySelector("input");
    const started = performance.now();
    field.value = "node-129999";
    field.dispatchEvent(new Event("input", { bubbles: true }));
    (function look() {
      if (nodes.querySelector("[data-part=lines] a")?.textContent === "node-129999") return done((performance.now() - started).toFixed(1));
      requestAnimationFrame(look);
    })();
  }, 500);
})`

// BenchmarkPage measures the page with 130,000 Nodes, of which 1,000 change in a second, and 10,000
// Services, in headless Chromium without a GPU. Gateway and browser share the machine.
func BenchmarkPage(b *testing.B) {
	gateway := webtest.StartGateway(b, web.Files(), webtest.Cluster{Nodes: 130_000, Services: 10_000, Changes: 1000})
	browser := webtest.StartBrowser(b)
	for b.Loop() {
		window := browser.Open(b, gateway.URL)
		window.Resize(b, 1280, 900, "light")
		window.WaitFor(b, loadLimit, `document.querySelector("trivet-nodes [data-part=count]").textContent`, "130,000")
		number := func(metric, expression string) {
			value, err := strconv.ParseFloat(window.Eval(b, expression), 64)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(value, metric)
		}
		number("first-paint-ms", `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
		number("usable-ms", `performance.now()`)
		window.Eval(b, `document.querySelector(".map").scrollIntoView()`)
		before := window.BusySeconds(b)
		var p50, p95, worst, task float64
		for i, text := range strings.Fields(window.Eval(b, recorder)) {
			*[]*float64{&p50, &p95, &worst, &task}[i], _ = strconv.ParseFloat(text, 64)
		}
		b.ReportMetric((window.BusySeconds(b)-before)*100, "main-thread-ms/s") // of ten seconds
		b.ReportMetric(p50, "p50-frame-ms")
		b.ReportMetric(p95, "p95-frame-ms")
		b.ReportMetric(worst, "longest-frame-ms")
		b.ReportMetric(task, "longest-task-ms")
		number("search-ms", typing)
		b.ReportMetric(window.HeapBytes(b)/1e6, "page-heap-MB")
		total := 0.0
		for _, worker := range browser.Workers(b) {
			total += worker.HeapBytes(b)
		}
		b.ReportMetric(total/1e6, "worker-heap-MB")
	}
}
