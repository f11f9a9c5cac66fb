package endpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/textproto"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/leasewrite"
	"github.com/trivet-dev/trivet/internal/acknowledge"
)

const (
	// readTimeout bounds a read of the real Lease. It is well below a kubelet's timeout of 10 s.
	readTimeout = 3 * time.Second
	// refreshPeriod is the time after which the real Lease is read again, so that a Lease that
	// something else has deleted or changed is noticed.
	refreshPeriod = 5 * time.Minute
	// refreshRetry is the pause after a read that failed.
	refreshRetry = 10 * time.Second
	// briefWait is longer than an acknowledgement usually takes.
	briefWait = 500 * time.Millisecond
	// putTimeout bounds a write to kube-apiserver, also of a kubelet that waits without end.
	putTimeout = 10 * time.Second
	// maxConflicts limits the repetitions of a write after a conflict with leasesvc.
	maxConflicts = 3
)

// leaseWriter makes heartbeats of the kubelet's Lease writes. A write whose heartbeat is not
// acknowledged in time passes to kube-apiserver.
type leaseWriter struct {
	node      string
	transport http.RoundTripper
	// kubelets sends the requests of the kubelet, and transport those of the endpoint itself.
	kubelets   http.RoundTripper
	heartbeats Heartbeats
	logger     *slog.Logger

	turn chan struct{} // holds one value; its owner serves a write and owns the fields below
	// known is the Lease as kube-apiserver has it; nil if it is unknown. settled is what the
	// kubelet last wrote there or, before the first write, what it read.
	known, settled *coordinationv1.Lease
	refreshAt      time.Time
	// renewedAt is when known was renewed by anything, and readAt when that was read or written.
	renewedAt, readAt time.Time
	// unwritten says that nothing but the kubelet renews the real Lease, although leasesvc accepts
	// heartbeats.
	unwritten bool
	// reported is when the kubelet was observed, by the last heartbeat, and acknowledged the same
	// by the last one that was acknowledged.
	reported, acknowledged time.Time

	mu     sync.Mutex // guards the fields below
	state  passthrough
	forget bool // known is out of date
}

// passthrough is what the metrics and the snapshot say.
type passthrough struct {
	since     time.Time     // zero while heartbeats are acknowledged
	total     time.Duration // of former periods
	lastWrite time.Time
	beats     uint64 // writes that became a heartbeat
	passed    uint64 // writes that passed because their heartbeat was not acknowledged
	changes   uint64 // writes that passed because they change the Lease
	overdue   uint64 // writes that passed because leasesvc does not write the Lease
	conflicts uint64 // conflicts with leasesvc that the kubelet did not see
}

func newLeaseWriter(node string, transport, kubelets http.RoundTripper, heartbeats Heartbeats, logger *slog.Logger) *leaseWriter {
	return &leaseWriter{node: node, transport: transport, kubelets: kubelets, heartbeats: heartbeats, logger: logger, turn: make(chan struct{}, 1)}
}

// serve answers a write of the node's Lease, and returns false for any other request. The body of
// an unusual write is still there then.
func (l *leaseWriter) serve(w http.ResponseWriter, r *http.Request) bool {
	form := leasewrite.Recognise(l.node, leasewrite.Request{Method: r.Method, URI: r.RequestURI, Header: textproto.MIMEHeader(r.Header)})
	if form.Kind == leasewrite.Other {
		return false
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, leasewrite.MaxBodyBytes+1))
	r.Body = restored{Reader: io.MultiReader(bytes.NewReader(body), r.Body), Closer: r.Body}
	if err != nil || len(body) > leasewrite.MaxBodyBytes {
		return false
	}
	arrived := time.Now()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-r.Context().Done():
		return false
	}
	return l.write(w, r, form, body, arrived)
}

// restored is a body of which a part was read.
type restored struct {
	io.Reader
	io.Closer
}

func (l *leaseWriter) write(w http.ResponseWriter, r *http.Request, form leasewrite.Form, body []byte, arrived time.Time) bool {
	readErr := l.refresh(r.Context())
	if l.known == nil && readErr == nil {
		return false // there is no such Lease; kube-apiserver says so
	}
	write, err := leasewrite.Decode(form, body, l.known)
	if err != nil {
		return false
	}
	if l.settled == nil {
		l.settled = l.known
	}
	verdict := leasewrite.Judge(l.node, write, l.known, l.settled)
	if verdict == leasewrite.Unusual {
		return false
	}
	duration := time.Duration(*write.Spec.LeaseDurationSeconds) * time.Second
	err = l.beat(r.Context(), arrived, acknowledge.By(arrived, l.acknowledged, duration, form.Timeout))
	acknowledged := err == nil
	overdue := acknowledged && l.overdue()
	l.record(verdict, err, overdue)
	switch {
	case acknowledged && verdict == leasewrite.Renewal && !overdue:
		l.answer(w, form, leasewrite.Answer(write, l.known))
		return true
	case form.Kind == leasewrite.Replace:
		return l.pass(w, r, form, write)
	}
	return false
}

// beat sends a heartbeat of a kubelet whose write arrived at that time. It returns nil once
// leasesvc has acknowledged it, and an error if that takes too long. While writes pass, it waits
// only as long as an acknowledgement usually takes, so that an outage costs one long wait.
func (l *leaseWriter) beat(ctx context.Context, arrived, by time.Time) error {
	if arrived.After(l.reported) { // else a later write had its turn first
		l.reported = arrived
	}
	brief := time.Now().Add(briefWait)
	if !l.current().since.IsZero() || by.Before(brief) {
		by = brief
	}
	ctx, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	err := l.heartbeats.Beat(ctx, l.reported)
	if err == nil {
		l.acknowledged = l.reported
	}
	return err
}

// refresh reads the real Lease if it is unknown or old. A failed read changes nothing. After a
// successful one known is nil if there is no Lease.
func (l *leaseWriter) refresh(ctx context.Context) error {
	now := time.Now()
	if l.takeForget() {
		l.known, l.refreshAt = nil, time.Time{}
	}
	if now.Before(l.refreshAt) {
		if l.known == nil {
			return errUnknownLease
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	read, err := l.read(ctx)
	if err != nil {
		l.refreshAt = now.Add(refreshRetry)
		if l.known == nil {
			l.refreshAt = time.Time{}
		}
		l.logger.Warn("cannot read the Lease of the node", "error", err)
		return err
	}
	renewedAt := time.Time{}
	if read != nil {
		renewedAt = leasewrite.RenewedAt(read, l.known, now, l.readAt, l.renewedAt)
		l.noteWritten(read)
	}
	l.keep(read, renewedAt)
	if read == nil {
		l.settled = nil
	}
	return nil
}

// keep sets what is known of the real Lease. It is read again when it is due, because leasesvc may
// accept heartbeats and fail to write.
func (l *leaseWriter) keep(lease *coordinationv1.Lease, renewedAt time.Time) {
	now := time.Now()
	l.known, l.renewedAt, l.readAt, l.refreshAt = lease, renewedAt, now, time.Time{}
	if lease == nil {
		return
	}
	l.refreshAt = now.Add(refreshPeriod)
	if due := renewedAt.Add(leasewrite.DueAfter(lease)); due.Before(l.refreshAt) {
		l.refreshAt = due
	}
}

// overdue reports whether a read has found that nothing renewed the real Lease when it was due. A
// read that failed says nothing.
func (l *leaseWriter) overdue() bool {
	overdue := l.known != nil && l.readAt.Sub(l.renewedAt) >= leasewrite.DueAfter(l.known)
	if overdue && !l.unwritten {
		l.unwritten = true
		l.logger.Warn("leasesvc accepts heartbeats and does not write the Lease; the kubelet's writes keep it alive", "renewed", l.renewedAt)
	}
	return overdue
}

// noteWritten notes that something other than the kubelet has renewed the Lease that was read.
func (l *leaseWriter) noteWritten(read *coordinationv1.Lease) {
	if l.unwritten && l.known != nil && !leasewrite.SameRenewal(read, l.known) {
		l.unwritten = false
		l.logger.Info("the Lease is written again")
	}
}

var errUnknownLease = errors.New("the Lease is not known")

// read returns the real Lease; nil if there is none.
func (l *leaseWriter) read(ctx context.Context) (*coordinationv1.Lease, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes"+leasewrite.Path(l.node), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", leasewrite.Protobuf)
	response, err := l.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 2*leasewrite.MaxBodyBytes))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read Lease: %w", err)
	case response.StatusCode == http.StatusNotFound:
		return nil, nil
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("read Lease: %s", response.Status)
	}
	return leasewrite.DecodeLease(leasewrite.Protobuf, body)
}

func (l *leaseWriter) answer(w http.ResponseWriter, form leasewrite.Form, lease *coordinationv1.Lease) {
	body, err := leasewrite.EncodeLease(form.Out, lease)
	if err != nil {
		writeStatus(w, http.StatusInternalServerError, "InternalError", err.Error())
		return
	}
	w.Header().Set("Content-Type", form.Out)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the kubelet may have gone; it writes again
}

// pass sends a write to kube-apiserver with the version of the real Lease, which leasesvc may have
// changed since the kubelet read it. It returns false if the write is to pass as it came.
func (l *leaseWriter) pass(w http.ResponseWriter, r *http.Request, form leasewrite.Form, write *coordinationv1.Lease) bool {
	for try := 1; ; try++ {
		body, err := leasewrite.EncodeLease(form.In, leasewrite.Rebase(write, l.known, l.settled))
		if err != nil {
			return false
		}
		answer, err := l.put(r, body)
		if err != nil {
			l.known, l.refreshAt = nil, time.Time{} // it may have been written
			w.Header().Set("Retry-After", "1")
			writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", err.Error())
			return true
		}
		if answer.code == http.StatusConflict && try <= maxConflicts && l.reread(r.Context(), write) {
			l.countConflict()
			continue
		}
		l.learn(answer, form, write)
		answer.forward(w)
		return true
	}
}

// reread reads the real Lease after a conflict, and reports whether the write still applies to it.
func (l *leaseWriter) reread(ctx context.Context, write *coordinationv1.Lease) bool {
	l.refreshAt = time.Time{}
	if err := l.refresh(ctx); err != nil || l.known == nil {
		return false
	}
	return write.UID == "" || write.UID == l.known.UID
}

// learn keeps what a response tells of the real Lease.
func (l *leaseWriter) learn(answer answer, form leasewrite.Form, write *coordinationv1.Lease) {
	if answer.code == http.StatusOK || answer.code == http.StatusCreated {
		if stored, err := leasewrite.DecodeLease(form.Out, answer.body); err == nil {
			l.keep(stored, time.Now())
			l.settled = write
			return
		}
	}
	l.known, l.refreshAt = nil, time.Time{}
}

// answer is a response of kube-apiserver that was read.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (l *leaseWriter) put(r *http.Request, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), putTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://kubernetes"+r.RequestURI, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for _, name := range []string{"Accept", "Content-Type", "User-Agent", "Audit-Id", "Traceparent"} {
		if values := r.Header.Values(name); len(values) > 0 {
			request.Header[name] = values
		}
	}
	response, err := l.kubelets.RoundTrip(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxBodyBytes))
	return answer{code: response.StatusCode, header: response.Header, body: text}, err
}

func (a answer) forward(w http.ResponseWriter) {
	for name, values := range a.header {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Trailer", "Upgrade", "Content-Length":
			continue
		}
		w.Header()[name] = values
	}
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body) // the kubelet may have gone; it writes again
}

// passed notes a request that passed as it came. It may have changed the Lease.
func (l *leaseWriter) passed(r *http.Request) {
	if leasewrite.ChangesLease(r.Method, r.URL.Path) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forget = true
	}
}

func (l *leaseWriter) takeForget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	forget := l.forget
	l.forget = false
	return forget
}

func (l *leaseWriter) countConflict() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.conflicts++
}

// record notes what becomes of a write. The error says why its heartbeat was not acknowledged.
func (l *leaseWriter) record(verdict leasewrite.Verdict, unacknowledged error, overdue bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, s, acknowledged := time.Now(), &l.state, unacknowledged == nil
	s.lastWrite = now
	switch {
	case !acknowledged:
		s.passed++
	case verdict == leasewrite.Change:
		s.changes++
	case overdue:
		s.overdue++
	default:
		s.beats++
	}
	if acknowledged == s.since.IsZero() {
		return
	}
	if acknowledged {
		s.total += now.Sub(s.since)
		l.logger.Info("leasesvc acknowledges heartbeats again", "after", now.Sub(s.since).Round(time.Millisecond))
		s.since = time.Time{}
		return
	}
	s.since = now
	l.logger.Warn("leasesvc does not acknowledge heartbeats; Lease writes pass to kube-apiserver", "error", unacknowledged)
}

func (l *leaseWriter) current() passthrough {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

func (l *leaseWriter) snapshot() Snapshot {
	s := l.current()
	return Snapshot{PassthroughSince: s.since, LastWrite: s.lastWrite}
}
