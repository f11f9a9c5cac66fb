package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
)

// answers is a kube-apiserver: it returns what answer says.
type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// responses is what a test gets of a reach, and the last time that was passed on.
type responses struct {
	reach
	t      *testing.T
	passed time.Time
}

func newResponses(t *testing.T) *responses {
	r := &responses{t: t}
	r.changed = func(since time.Time) { r.passed = since }
	return r
}

// ask sends a request that ends with ctx.
func (r *responses) ask(ctx context.Context, answer answers) *http.Response {
	r.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes/api/v1/pods", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.next = answer
	response, err := r.RoundTrip(request)
	if err != nil {
		return nil
	}
	return response
}

// read reads a response to its end and closes it.
func (r *responses) read(ctx context.Context, answer answers) {
	r.t.Helper()
	if response := r.ask(ctx, answer); response != nil {
		_, _ = io.Copy(io.Discard, response.Body) // how it ends is part of the test
		_ = response.Body.Close()
	}
}

func (r *responses) expect(what string, since time.Time) {
	r.t.Helper()
	if got := r.cutOff(); !got.Equal(since) || !r.passed.Equal(since) {
		r.t.Errorf("%s: cut off since %v, and since %v as passed on; want %v", what, got, r.passed, since)
	}
}

func code(status int) answers {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
}

// after is an answer that takes a while, or ends with the request.
func after(d time.Duration, answer answers) answers {
	return func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return answer(r)
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	}
}

func refused(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

func TestReach_IsCutOffSinceTheFirstRequestThatFailed(t *testing.T) {
	for name, served := range map[string]int{
		"200": 200, "404": 404, "409": 409, "410": 410, "429": 429, "500": 500, "503 of kube-apiserver": 503, "101": 101,
	} {
		for failure, answer := range map[string]answers{"403": code(403), "401": code(401), "no answer": refused} {
			synctest.Test(t, func(t *testing.T) {
				r, ctx := newResponses(t), t.Context()
				r.expect("before a request", time.Time{})
				first := time.Now()
				r.read(ctx, after(2*time.Second, answer))
				r.expect(failure, first)
				time.Sleep(time.Minute)
				r.read(ctx, code(403))
				r.read(ctx, refused)
				r.expect("further failures", first)
				r.read(ctx, code(served))
				r.expect(name, time.Time{})
				time.Sleep(time.Minute)
				second := time.Now()
				r.read(ctx, answer)
				r.expect(failure+" again", second)
			})
		}
	}
}

// A request that was sent before another one was served, and fails later, says nothing of the time
// before.
func TestReach_FailureCountsFromTheLastRequestThatWasServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResponses(t)
		r.read(t.Context(), after(10*time.Second, func(*http.Request) (*http.Response, error) {
			r.begin()
			r.end(false)
			time.Sleep(time.Second)
			return nil, io.ErrUnexpectedEOF
		}))
		r.expect("a request that failed now", time.Now())
	})
}

func TestReach_OpenWatchIsServed(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(events *io.PipeWriter, watch io.Closer, leave context.CancelFunc)
		cutOff bool
	}{
		"kube-apiserver ends it": {end: func(events *io.PipeWriter, _ io.Closer, _ context.CancelFunc) { _ = events.Close() }},
		"the connection breaks": {end: func(events *io.PipeWriter, _ io.Closer, _ context.CancelFunc) {
			_ = events.CloseWithError(io.ErrUnexpectedEOF)
		}, cutOff: true},
		"the kubelet ends it": {end: func(_ *io.PipeWriter, watch io.Closer, _ context.CancelFunc) { _ = watch.Close() }},
		"the request is cancelled": {end: func(events *io.PipeWriter, _ io.Closer, leave context.CancelFunc) {
			leave()
			_ = events.CloseWithError(context.Canceled)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newResponses(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r.read(ctx, code(403))
				body, events := io.Pipe()
				watch := r.ask(ctx, func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
				})
				r.expect("the watch begins", time.Time{})
				for range 10 {
					time.Sleep(time.Minute)
					r.read(t.Context(), code(403))
					r.read(t.Context(), refused)
				}
				r.expect("while the watch is open", time.Time{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = io.Copy(io.Discard, watch.Body) // how it ends is part of the test
					_ = watch.Body.Close()
				}()
				synctest.Wait()
				c.end(events, watch.Body, cancel)
				<-done
				want := time.Time{}
				if c.cutOff {
					want = time.Now()
				}
				r.expect("after its end", want)
				time.Sleep(time.Second)
				if want.IsZero() {
					want = time.Now()
				}
				r.read(t.Context(), code(403))
				r.expect("a failure after that", want)
				r.read(t.Context(), code(200))
				r.expect("served", time.Time{})
			})
		})
	}
}

func TestReach_CallersThatBreakOffCountOnlyIfTheyHaveWaited(t *testing.T) {
	for name, c := range map[string]struct {
		gone   time.Duration
		answer answers
		cutOff bool
	}{
		"leaves soon":          {gone: 4 * time.Second, answer: after(time.Hour, code(200))},
		"gives up":             {gone: 10 * time.Second, answer: after(time.Hour, code(200)), cutOff: true},
		"sends too much":       {gone: time.Hour, answer: func(*http.Request) (*http.Response, error) { return nil, &http.MaxBytesError{Limit: 1} }},
		"stops in its request": {gone: time.Hour, answer: func(*http.Request) (*http.Response, error) { return nil, upstream.ErrBody }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newResponses(t)
				ctx, cancel := context.WithTimeout(t.Context(), c.gone)
				defer cancel()
				want := time.Time{}
				if c.cutOff {
					want = time.Now()
				}
				r.read(ctx, c.answer)
				r.expect(name, want)
			})
		})
	}
}

// The kubelet is cut off while kube-apiserver refuses it, or does not answer. Renewals that
// leasesvc acknowledges, and requests of other callers, say nothing of that.
func TestCutOff_TellsLeasesvcSinceWhenKubeAPIServerServesNothing(t *testing.T) {
	t.Parallel()
	var refuse atomic.Int32
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := refuse.Load(); code != 0 {
			w.WriteHeader(int(code))
			return
		}
		echo(w, r)
	}))
	w := newWriter(f, "application/vnd.kubernetes.protobuf")
	const path = "/api/v1/nodes/" + node
	expect := func(what string, cutOff bool) {
		t.Helper()
		since := f.Snapshot().CutOffSince
		told := time.Time{}
		f.leasesvc.set(func(l *leasesvc) {
			if n := len(l.cutOff); n > 0 {
				told = l.cutOff[n-1]
			}
		})
		if since.IsZero() == cutOff || !since.Equal(told) {
			t.Errorf("%s: cut off since %v, as told to leasesvc since %v; want cut off: %v", what, since, told, cutOff)
		}
	}
	f.code(w.client, http.MethodGet, path)
	expect("served", false)
	for _, code := range []int32{401, 403} {
		refuse.Store(code)
		before := time.Now()
		if got := f.code(w.client, http.MethodGet, path); got != int(code) {
			t.Fatalf("code %d", got)
		}
		expect("refused", true)
		if since := f.Snapshot().CutOffSince; since.Before(before) {
			t.Errorf("cut off %v before the request", before.Sub(since))
		}
		refuse.Store(0)
		w.mustRenew()
		expect("a renewal that leasesvc acknowledges", true)
		f.code(f.client(nil, true), http.MethodGet, path)
		expect("a request without a certificate", true)
		f.leasesvc.set(func(l *leasesvc) { l.err = errors.New("gone") })
		w.mustRenew()
		expect("a renewal that passes", false)
		f.leasesvc.set(func(l *leasesvc) { l.err = nil })
		refuse.Store(code)
		f.code(w.client, http.MethodGet, path)
		expect("refused again", true)
		refuse.Store(500)
		f.code(w.client, http.MethodGet, path)
		expect("an error of kube-apiserver", false)
		refuse.Store(0)
	}
	f.server.Kill()
	if got := f.code(w.client, http.MethodGet, path); got != http.StatusServiceUnavailable {
		t.Fatalf("code %d", got)
	}
	expect("no kube-apiserver", true)
	if code := w.renew(); code != http.StatusOK {
		t.Errorf("a renewal while there is no kube-apiserver: %d", code)
	}
	expect("a renewal without a kube-apiserver", true)
}

// A kube-apiserver that is frozen keeps its connections. The watches of the kubelet end when the
// pings find that.
func TestCutOff_FrozenKubeAPIServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := f.kubelet().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	f.server.Freeze()
	defer f.server.Thaw()
	begin := time.Now()
	_, _ = io.Copy(io.Discard, watch.Body)
	if since := f.Snapshot().CutOffSince; since.Before(begin) {
		t.Errorf("cut off since %v, and the watch has ended after %v", since, time.Since(begin))
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the watch has ended %v after its kube-apiserver froze", took)
	}
}
