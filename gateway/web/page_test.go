package web_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

// What a table has: its column titles, or the cells of a row.
const (
	titles = `[...document.querySelectorAll("%s thead th")].map((th) => th.scope + " " + th.textContent).join(", ")`
	cells  = `[...document.querySelectorAll("%s tbody tr:nth-child(%d) > *")].map((cell) => cell.textContent).join(" | ")`
)

// TestPage has one browser for all its parts.
func TestPage(t *testing.T) {
	browser := webtest.StartBrowser(t)
	for name, part := range map[string]func(*testing.T, *webtest.Browser){
		"what is wrong comes first":                   testWhatIsWrongComesFirst,
		"problems of one replica are all shown":       testProblemsOfOneReplica,
		"tables have titles and the worst first":      testTables,
		"charts of the last hour":                     testCharts,
		"decisions are followed on demand":            testDecisions,
		"what a replica reports is text":              testHostileText,
		"fits small and large screens":                testFits,
		"the keyboard reaches a panel and comes back": testKeyboard,
		"a sleep of the machine":                      testSleep,
	} {
		t.Run(name, func(t *testing.T) { part(t, browser) })
	}
}

// open opens the page of a simulated cluster.
func open(t *testing.T, browser *webtest.Browser, cluster webtest.Cluster) webtest.Window {
	t.Helper()
	window := browser.Open(t, webtest.StartGateway(t, web.Files(), cluster).URL)
	window.Wait(t, `document.querySelector("trivet-nodes [data-part=count]").textContent`, fmt.Sprint(cluster.Nodes))
	return window
}

func testWhatIsWrongComesFirst(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 300, Services: 60, Broken: true})
	window.Wait(t, `document.querySelector("main > :first-child h2").textContent`, "2 problems, 1 error")
	window.Wait(t, `[...document.querySelectorAll(".problem-list .pill")].map((pill) => pill.textContent).join()`, "Error,Warning")
	window.Wait(t, `document.querySelector("trivet-problems [role=status]").textContent`, "2 problems, 1 error")
	window.Wait(t, `[...document.querySelectorAll(".overview b")].map((words) => words.textContent).join(", ")`,
		"4 of 300 not healthy, 1 of 60 with problems, 2 open, 1 of 2 ready, differs")

	// A problem is explained in place, by keyboard.
	window.Eval(t, `document.querySelector(".problem-list summary").focus()`)
	window.Press(t, "Enter", 13)
	window.Wait(t, `document.querySelector(".problem-list details").open`, "true")
	window.Wait(t, fmt.Sprintf(cells, ".problem-list details[open]", 3)+`.replace(/just now|\d+[sm] ago/, "…")`,
		"slicesvc-2 | no answer (DEADLINE_EXCEEDED) | not known | … | No answer in time.")
	if next := window.Eval(t, `document.querySelector(".problem-list details[open] .next").textContent`); !strings.Contains(next, "see the log") && !strings.Contains(next, "See the log") {
		t.Errorf("the problem says %q, want what to do next", next)
	}

	// What is healthy is folded, what is not is open.
	window.Wait(t, `document.querySelector("#bootstrapsvc details.fold").open`, "false")
	window.Wait(t, `document.querySelector("#slicesvc details.fold").open`, "true")
	window.Wait(t, `document.querySelector("#baseline details.fold").open`, "true")
}

// Two problems may have the same code and subject. None may be hidden, also not by a later answer.
func testProblemsOfOneReplica(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 3, CutOff: true})
	const shown = `[...document.querySelectorAll(".problem-list .message")].map((message) => message.textContent).join(" ")`
	const both = "Etcd is not reachable. Kube-apiserver is not reachable."
	window.Wait(t, shown, both)
	// The first one is open. It stays open over later answers, and the second one closed.
	window.Eval(t, `document.querySelector(".problem-list details").open = true`)
	window.Eval(t, `globalThis.answers = 0; new MutationObserver(() => answers++).observe(document.querySelector("trivet-summary time"), { attributes: true })`)
	window.Wait(t, `answers > 2`, "true")
	window.Wait(t, shown, both)
	window.Wait(t, `[...document.querySelectorAll(".problem-list details")].map(({ open }) => open).join()`, "true,false")
}

func testTables(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 300, Services: 60, Broken: true})
	window.Wait(t, fmt.Sprintf(titles, "trivet-nodes"), "col Node, col State, col Since, col Agent, col Zone, col Why")
	window.Wait(t, fmt.Sprintf(cells, "trivet-nodes", 1)+`.replace(/\| (\d+[sm]|now) \|/, "| … |")`,
		"node-000207 | unknown | … | trivet-agent v1.2.0 | eu-1:a | no heartbeat since its last Lease")
	window.Wait(t, fmt.Sprintf(titles, "trivet-slices"), "col Service, col Ready, col Slices, col Fill, col Source, col Last sync, col Problem")
	window.Wait(t, fmt.Sprintf(cells, "trivet-slices", 1),
		"team-007/svc-00007 | 8/8 | 1/1 | 8 of 100 | selector | 1 created · Pod | kube-controller-manager keeps changing the same slices")
	window.Wait(t, fmt.Sprintf(cells, "trivet-slices", 5)+`.split(" | ")[4]`, "Endpoints")
	window.Wait(t, fmt.Sprintf(cells, "trivet-apiservers", 1)+`.split(" | ")[1]`, "not ready")
	window.Wait(t, `[...document.querySelectorAll(".findings .code")].map((code) => code.textContent).join()`, "duplicate,orphaned")

	// A search finds each Node by its name, also one that is healthy.
	search := func(section, text string) {
		t.Helper()
		window.Eval(t, fmt.Sprintf(`{ const field = document.querySelector("%s input"); field.value = %q; field.dispatchEvent(new Event("input", { bubbles: true })); }`, section, text))
	}
	search("trivet-nodes", "node-000299")
	window.Wait(t, fmt.Sprintf(cells, "trivet-nodes", 1)+`.split(" | ").slice(0, 2).join()`, "node-000299,ready")
	search("trivet-slices", "svc-00059")
	window.Wait(t, fmt.Sprintf(cells, "trivet-slices", 1)+`.split(" | ")[0]`, "team-059/svc-00059")
	search("trivet-slices", "endpoints")
	window.Wait(t, `document.querySelectorAll("trivet-slices tbody tr").length`, "3")

	// The table of all Nodes shows more on demand.
	search("trivet-nodes", "")
	window.Eval(t, `document.querySelector("[data-as=table]").click()`)
	window.Wait(t, `document.querySelectorAll("trivet-nodes tbody tr").length`, "40")
	window.Eval(t, `document.querySelector("trivet-nodes [data-do=more]").click()`)
	window.Wait(t, `document.querySelectorAll("trivet-nodes tbody tr").length`, "140")
}

// A value that is not known is a gap in the line, and no zero.
func testCharts(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 3})
	const first = `document.querySelector(".charts li")`
	window.Wait(t, first+`.querySelector("h3").textContent`, "Leases alive")
	window.Wait(t, first+`.querySelector("path").getAttribute("d").match(/M/g).length`, "2")
	window.Wait(t, first+`.querySelector("svg").getAttribute("aria-label")`,
		"Leases alive: now 19; in the last hour from 0 to 99; not known for 3m")
	window.Wait(t, `document.querySelectorAll(".charts li").length + " " + document.querySelectorAll("trivet-history tbody tr").length`, "6 6")
}

func testDecisions(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 3})
	if rows := window.Eval(t, `document.querySelectorAll("trivet-decisions tbody tr").length`); rows != "0" {
		t.Errorf("the fold is closed, and the section has %s decisions", rows)
	}
	window.Eval(t, `document.querySelector("trivet-decisions summary").click()`)
	window.Wait(t, fmt.Sprintf(cells, "trivet-decisions", 1)+`.replace(/^.*? \|/, "… |")`,
		"… | Node marked unknown | Node node-000002 | No sign of life for 50s. | leasesvc-0")
	window.Wait(t, `document.querySelector("trivet-decisions [data-part=count]").textContent`, "3 decisions")
}

// The text of a hostile replica makes no element and no link, and its clock does not put its
// decisions before those of others.
func testHostileText(t *testing.T, browser *webtest.Browser) {
	for _, text := range []string{`javascript:globalThis.owned=1//`, `<img src=x onerror="globalThis.owned=1"><script>globalThis.owned=1</script>`} {
		window := open(t, browser, webtest.Cluster{Nodes: 3, Hostile: text})
		window.Wait(t, `document.querySelectorAll(".problem-list li").length`, "1")
		window.Eval(t, `document.querySelector(".problem-list details").open = true`)
		window.Eval(t, `document.querySelector("trivet-decisions summary").click()`)
		window.Wait(t, `document.querySelector("trivet-decisions [data-part=count]").textContent`, "4 decisions")
		window.Wait(t, fmt.Sprintf(cells, "trivet-decisions", 1)+`.includes("node-000002")`, "true")
		window.Wait(t, fmt.Sprintf(cells, "trivet-decisions", 4)+`.startsWith("in ")`, "true")
		window.Wait(t, `document.body.textContent.includes("globalThis.owned=1")`, "true")
		window.Wait(t, `[...document.querySelectorAll("a")].filter((link) => !["http:", "https:"].includes(link.protocol)).length`, "0")
		window.Wait(t, `document.querySelectorAll("main img, main script").length`, "0")
		window.Eval(t, `[...document.querySelectorAll(".problem-list a, trivet-decisions a")].forEach((link) => link.click())`)
		window.Wait(t, `typeof globalThis.owned`, "undefined")
	}
}

// No part of the page is wider than the window.
func testFits(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 300, Services: 60, Broken: true})
	for _, width := range []int{400, 860, 1280, 3840} {
		window.Resize(t, width, 900, "light")
		window.Eval(t, `document.querySelectorAll("details").forEach((one) => (one.open = true))`)
		window.Wait(t, `innerWidth + " " + (document.documentElement.scrollWidth <= document.documentElement.clientWidth)`, fmt.Sprintf("%d true", width))
	}
}

// The focus is visible and follows the page from its top; a panel takes it and gives it back.
func testKeyboard(t *testing.T, browser *webtest.Browser) {
	window := open(t, browser, webtest.Cluster{Nodes: 300, Services: 60, Broken: true})
	const focused = `document.activeElement.textContent`
	window.Press(t, "Tab", 9)
	window.Wait(t, focused, "Skip to the verdict")
	window.Press(t, "Enter", 13)
	window.Press(t, "Tab", 9)
	window.Wait(t, `document.activeElement.closest("details")?.dataset.problem`, "SHARDS_WITHOUT_LEADER services/slicesvc")
	window.Wait(t, `getComputedStyle(document.activeElement).outlineStyle`, "solid")
	window.Eval(t, `document.querySelector("trivet-nodes tbody a").focus()`)
	window.Press(t, "Enter", 13)
	window.Wait(t, focused, "node-000207")
	window.Wait(t, `document.activeElement.closest("[role=dialog]") !== null`, "true")
	window.Wait(t, `document.querySelectorAll("trivet-node-panel .chain li").length`, "4")
	window.Press(t, "Escape", 27)
	window.Wait(t, `document.querySelector("trivet-node-panel").hidden + " " + document.activeElement.localName`, "true a")
}

// A page opens its watches once, however quiet they are. performance.now() stands still while a
// machine sleeps, and Date.now() goes on. After a sleep the page connects at once, and without an
// answer it says how old its data is.
func testSleep(t *testing.T, browser *webtest.Browser) {
	gateway := webtest.StartGateway(t, web.Files(), webtest.Cluster{Nodes: 3})
	window := browser.Open(t, gateway.URL)
	window.Wait(t, `document.querySelector("trivet-nodes [data-part=count]").textContent`, "3")
	const sleep = `{ const now = Date.now; Date.now = () => now() + 30 * 3600 * 1000; }`
	worker := workerOf(t, browser, window)
	before := gateway.Watches.Load()
	testkit.Pause(t.Context(), 12*time.Second) // longer than a watch without a bookmark may be silent
	if opened := gateway.Watches.Load() - before; opened > 0 {
		t.Fatalf("the worker has connected %d times without a sleep", opened)
	}
	worker.Eval(t, sleep)
	testkit.Eventually(t, 10*time.Second, func() error {
		if gateway.Watches.Load() == before {
			return errors.New("the worker has not connected again")
		}
		return nil
	})
	window.Wait(t, `document.querySelector("trivet-banner").hidden`, "true")

	const merged = `document.querySelector("trivet-summary time").textContent`
	window.Wait(t, merged+`.includes(", ")`, "false")
	gateway.Stop()
	window.Eval(t, sleep)
	window.Wait(t, `document.querySelector("trivet-banner").textContent.match(/, ([^,]*) ago/)?.[1]`, "1d 6h")
	window.Wait(t, merged+`.includes(", ")`, "true")
}

// workerOf returns the shared worker of a page.
func workerOf(t *testing.T, browser *webtest.Browser, page webtest.Window) webtest.Window {
	t.Helper()
	origin := page.Eval(t, "location.origin")
	for _, worker := range browser.Workers(t) {
		if worker.Eval(t, "location.origin") == origin {
			return worker
		}
	}
	t.Fatal("the page has no worker")
	return webtest.Window{}
}
