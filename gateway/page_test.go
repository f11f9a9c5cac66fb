package gateway_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/testkit"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// Each window of a page shows all Nodes and goes on showing changes. A browser opens six connections
// to a host, for all its windows.
func TestPage_EightWindowsOfOneBrowserAreAlive(t *testing.T) {
	leasesvc := newLeasesvc("l1")
	for i := range 20 {
		leasesvc.put(fmt.Sprintf("node-%02d", i), "a", nodev1.NodeHealth_HEALTH_READY)
	}
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	browser := startBrowser(t)
	var windows []window
	for range 8 {
		windows = append(windows, browser.open(t, "http://"+gateway.HTTPAddress()+"/"))
	}
	show := func(nodes string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			for i, window := range windows {
				count, err := window.text(`document.querySelector("trivet-nodes [data-part=count]").textContent`)
				if err == nil && count != nodes {
					notice, _ := window.text(`document.querySelector("trivet-nodes").textContent + document.querySelector("trivet-banner").textContent + document.visibilityState`)
					err = fmt.Errorf("window %d shows %q Nodes, want %s: %s", i+1, count, nodes, notice)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	show("20")
	leasesvc.put("node-new", "a", nodev1.NodeHealth_HEALTH_READY)
	show("21")
	for i, window := range windows {
		if title, err := window.text("document.title"); err != nil || title == "Trivet" || title == "? Trivet" {
			t.Errorf("the title of window %d is %q (%v), want one with a status", i+1, title, err)
		}
	}
}
