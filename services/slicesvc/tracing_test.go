package slicesvc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/test/lab/otlptest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A Pod's event, its wait, the plan, and the write with its request are one trace.
func TestTracing_APlanIsOneTraceFromTheEventToTheWrite(t *testing.T) {
	t.Parallel()
	collector := otlptest.New(t)
	running, _ := collector.Run(t, "slicesvc")
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(running.WrapTransport)
	f := newTracedFixture(t, config, running.Tracer("slicesvc"))
	node := f.node("a", "zone-a")
	f.service()
	f.expect("IPv4 none: ")
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	f.status("web-0", unready)
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ")
	version := f.slices()[0].ResourceVersion

	var spans []otlptest.Span
	var write otlptest.Span
	testkit.Eventually(t, testTimeout, func() error {
		spans = collector.Spans()
		for _, span := range spans {
			if span.Name == "write slice" && span.Values["trivet.slice.resource_version"] == version {
				write = span
				return nil
			}
		}
		return fmt.Errorf("no span ends with version %s of the slice among %d", version, len(spans))
	})
	find := func(id string) otlptest.Span {
		t.Helper()
		for _, span := range spans {
			if span.ID() == id {
				return span
			}
		}
		t.Fatalf("span %q was not received", id)
		return otlptest.Span{}
	}
	sync := find(write.Parent())
	event := find(sync.Parent())
	if write.Values["trivet.verb"] != "update" {
		t.Errorf("the write is %v, want an update", write)
	}
	if event.Name != "change received" || event.Parent() != "" || event.Values["trivet.trigger"] != "POD" || event.Values["trivet.object.name"] != "web-0" ||
		event.Values["trivet.object.resource_version"] == "" {
		t.Errorf("the trace begins with %v, want the Pod's event", event)
	}
	for _, span := range []otlptest.Span{event, sync} {
		if span.Values["trivet.service.namespace"] != f.namespace || span.Values["trivet.service.name"] != "web" ||
			span.Values["trivet.shard"] == "" || span.Values["trivet.epoch"] == "" {
			t.Errorf("%s has the attributes %v, want the Service, its shard and the epoch", span.Name, span.Values)
		}
	}
	children := map[string][]string{}
	for _, span := range spans {
		if span.Trace() == event.Trace() {
			children[span.Parent()] = append(children[span.Parent()], span.Name)
		}
	}
	for parent, want := range map[string][]string{
		event.ID(): {"sync slices"}, sync.ID(): {"plan slices", "wait in queue", "write slice"}, write.ID(): {"HTTP PUT"},
	} {
		if got := children[parent]; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
			t.Errorf("%s has the children %q, want %q", find(parent).Name, got, want)
		}
	}
	for _, span := range spans {
		if strings.Contains(span.String(), "10.1.0.1") {
			t.Errorf("a span has the address of a Pod: %v", span)
		}
	}
}

// The collector accepts connections and answers nothing. The slices follow as without traces.
func TestTracing_AHangingCollectorDelaysNoPlan(t *testing.T) {
	t.Parallel()
	collector := otlptest.NewHanging(t)
	running, _ := collector.Run(t, "slicesvc")
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(running.WrapTransport)
	f := newTracedFixture(t, config, running.Tracer("slicesvc"))
	node := f.node("a", "zone-a")
	f.service()
	f.expect("IPv4 none: ")
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	testkit.Eventually(t, testTimeout, func() error {
		if collector.Calls() == 0 {
			return fmt.Errorf("the collector has no request")
		}
		return nil
	})
	begin := time.Now()
	const flips = 10
	for i := range flips {
		change, want := unready, ""
		if i%2 == 1 {
			change, want = becomeReady, "RS"
		}
		f.status("web-0", change)
		f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a " + want)
	}
	// The exporter waits for ten seconds for each answer.
	if took := time.Since(begin); took > flips*6*time.Second {
		t.Errorf("%d plans took %v while the collector hangs", flips, took)
	}
}
