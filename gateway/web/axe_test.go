package web_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

var axe = flag.String("axe", "", "axe.min.js of axe-core: check the accessibility of the page with it; `make test-page` does")

// violations runs all rules of axe and returns what they find.
const violations = `axe.run().then(({ violations }) => JSON.stringify(violations.flatMap(({ id, impact, nodes }) =>
  nodes.map(({ html, failureSummary }) => ({ rule: id, impact, html: html.slice(0, 200), summary: failureSummary.slice(0, 400) })))))`

// The page has no violation of a rule of axe, in both themes, on a small and a large screen, while
// all is well and while something is broken, with a problem, a fold, a table and a panel open.
func TestPage_AxeFindsNothing(t *testing.T) {
	if *axe == "" {
		t.Skip("needs axe-core: make test-page")
	}
	script, err := os.ReadFile(*axe)
	if err != nil {
		t.Fatal(err)
	}
	browser := webtest.StartBrowser(t)
	for name, broken := range map[string]bool{"healthy": false, "broken": true} {
		gateway := webtest.StartGateway(t, web.Files(), webtest.Cluster{Nodes: 300, Services: 60, Broken: broken})
		window := browser.Open(t, gateway.URL)
		filled(t, window)
		window.Eval(t, string(script)+"; 0")
		check := func(state string) {
			t.Helper()
			started := time.Now()
			var found []struct{ Rule, Impact, HTML, Summary string }
			if err := json.Unmarshal([]byte(window.Eval(t, violations)), &found); err != nil {
				t.Fatal(err)
			}
			for _, v := range found {
				t.Errorf("%s, %s: %s (%s): %s\n%s", name, state, v.Rule, v.Impact, v.HTML, v.Summary)
			}
			t.Logf("%s, %s: %s", name, state, time.Since(started))
		}
		for _, size := range []int{400, 1280, 3840} {
			window.Resize(t, size, 1000, "light")
			window.Eval(t, `location.hash = ""; document.querySelectorAll("details").forEach((one) => (one.open = false)); document.querySelector("[data-as=map]").click()`)
			check(fmt.Sprintf("%d px, light, folded", size))
		}
		window.Resize(t, 1280, 1000, "dark")
		window.Eval(t, `document.querySelectorAll("details").forEach((one) => (one.open = true)); document.querySelector("[data-as=table]").click()`)
		check("1280 px, dark, unfolded")
		window.Eval(t, `location.hash = "#node/node-000007"`)
		window.Wait(t, `document.querySelectorAll("trivet-node-panel .chain li").length > 0`, "true")
		check("1280 px, dark, a panel")
		window.Resize(t, 400, 1000, "light")
		check("400 px, light, unfolded, a panel")
	}
}

// filled waits until each section of the page has its first answer.
func filled(t *testing.T, window webtest.Window) {
	t.Helper()
	window.Wait(t, `document.querySelector("trivet-nodes [data-part=count]").textContent`, "300")
	window.Wait(t, `[...document.querySelectorAll("main p.muted")].filter((p) => p.innerText.startsWith("Waiting")).length`, "0")
	window.Wait(t, `document.querySelectorAll(".charts li").length > 0`, "true")
}
