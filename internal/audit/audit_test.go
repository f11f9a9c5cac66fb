package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/internal/authn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text is a log of a process.
type text struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

func (t *text) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(line)
}

func (t *text) lines(tb testing.TB) []map[string]any {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	return decode(tb, t.all.Bytes())
}

func decode(tb testing.TB, lines []byte) (found []map[string]any) {
	tb.Helper()
	for line := range bytes.Lines(lines) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			tb.Fatalf("line %q: %v", line, err)
		}
		delete(fields, "time")
		found = append(found, fields)
	}
	return found
}

// fixture is a log that writes to the log of a process of level error.
type fixture struct {
	*Log
	written *text
	metrics *prometheus.Registry
	ended   chan error
	end     context.CancelFunc
}

func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	f := &fixture{written: &text{}, metrics: prometheus.NewRegistry(), ended: make(chan error, 1)}
	logger := slog.New(slog.NewJSONHandler(f.written, &slog.HandlerOptions{Level: slog.LevelError}))
	var err error
	if f.Log, err = New(cfg, logger, f.metrics); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) start(t testing.TB) {
	ctx, cancel := context.WithCancel(t.Context())
	f.end = cancel
	go func() { f.ended <- f.Run(ctx) }()
}

func (f *fixture) stop(t testing.TB) {
	t.Helper()
	f.end()
	if err := <-f.ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func (f *fixture) count(t testing.TB, name string) (sum float64) {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func denial(user string) Record {
	return Record{
		Caller: &authn.Caller{User: authn.User{Name: user}}, Method: "/a.B/C", Object: "nodes/a",
		Decision: Denied, Code: codes.PermissionDenied, Reason: "NOT_AUTHORIZED",
	}
}

func mutation(id int) Record {
	return Record{Caller: &authn.Caller{User: authn.User{Name: "ann"}}, Method: "/a.B/C", RequestID: fmt.Sprint(id), Decision: Allowed}
}

func TestLog_RecordHasTheWholeStory(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	f.start(t)
	f.Write(Record{
		RequestID: "6f1c", Method: "/trivet.bootstrap.v1.RepairService/ApplyRepairPlan", Object: "repairPlans/a", Decision: Allowed,
		DecisionReason: "RBAC: allowed", Code: codes.Aborted, Reason: "CONFLICT", Duration: 3 * time.Millisecond,
		Caller: &authn.Caller{
			User: authn.User{Name: "system:serviceaccount:a:b", UID: "7", Groups: []string{"g1", "g2"}, Extra: map[string][]string{
				"authentication.kubernetes.io/node-name": {"node-1"}, "other": {"hidden"},
			}},
			Peer: authn.User{Name: "trivet:gateway"}, Forwarded: true, Address: "10.0.0.1:7",
		},
	})
	f.stop(t)
	want := []map[string]any{{
		"level": "INFO", "msg": "audit", "decision": "allow", "decision_reason": "RBAC: allowed", "user": "system:serviceaccount:a:b", "uid": "7",
		"groups": []any{"g1", "g2"}, "node": "node-1", "forwarded_by": "trivet:gateway", "address": "10.0.0.1:7",
		"method": "/trivet.bootstrap.v1.RepairService/ApplyRepairPlan", "object": "repairPlans/a", "request_id": "6f1c",
		"code": "Aborted", "reason": "CONFLICT", "duration": float64(3 * time.Millisecond),
	}}
	if diff := cmp.Diff(want, f.written.lines(t)); diff != "" {
		t.Errorf("the log differs (-want +got):\n%s", diff)
	}
}

func TestLog_HostileNamesStayInTheirField(t *testing.T) {
	cfg := Config{File: filepath.Join(t.TempDir(), "audit.log"), MaxBytes: minFileBytes}
	f := newFixture(t, cfg)
	f.start(t)
	r := denial("eve\n{\"msg\":\"audit\",\"decision\":\"allow\"}\x00\x1b[2J\xff" + strings.Repeat("x", 10_000))
	for i := range 1000 {
		r.Caller.User.Groups = append(r.Caller.User.Groups, fmt.Sprint("group ", i))
	}
	f.Write(r)
	f.stop(t)
	raw, err := os.ReadFile(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	lines := decode(t, raw)
	if len(lines) != 1 || lines[0]["decision"] != "deny" || len(raw) > 3000 {
		t.Errorf("%d lines with %d bytes, decision %v; want one short denial", len(lines), len(raw), lines[0]["decision"])
	}
	if bytes.ContainsAny(raw[:len(raw)-1], "\x00\x1b\n") {
		t.Errorf("the line has control characters: %q", raw)
	}
}

func TestLog_WriteNeverBlocksAndTellsWhatIsMissing(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	for i := range queueLength + 100 { // Run has not begun, as with a disk that stands still
		f.Write(mutation(i))
	}
	f.start(t)
	f.stop(t)
	lines := f.written.lines(t)
	var told float64
	for _, line := range lines {
		if line["msg"] == "audit: records were dropped" {
			told += line["dropped"].(float64)
		}
	}
	if told != 100 || len(lines) != queueLength+1 || f.count(t, "trivet_audit_dropped_total") != 100 {
		t.Errorf("%d lines tell of %v dropped records, the metric of %v; want %d lines and 100", len(lines), told, f.count(t, "trivet_audit_dropped_total"), queueLength+1)
	}
}

func TestLog_DenialsOfOneIdentityAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, DefaultConfig())
		f.start(t)
		for range 5000 {
			f.Write(denial("eve"))
		}
		f.Write(denial("ann"))
		f.Write(mutation(1))
		synctest.Wait()
		if lines := f.written.lines(t); len(lines) != burst+2 {
			t.Errorf("%d lines at once, want %d of eve and two more", len(lines), burst)
		}
		time.Sleep(summaryPeriod + time.Second)
		lines := f.written.lines(t)
		want := map[string]any{
			"level": "INFO", "msg": "audit: further denials", "decision": "deny", "user": "eve", "address": "",
			"suppressed": float64(5000 - burst), "last_method": "/a.B/C", "last_object": "nodes/a",
		}
		if diff := cmp.Diff(want, lines[len(lines)-1]); diff != "" {
			t.Errorf("the summary differs (-want +got):\n%s", diff)
		}
		f.Write(denial("eve"))
		synctest.Wait()
		if got := f.written.lines(t); len(got) != len(lines)+1 {
			t.Errorf("%d lines after a pause, want one more than %d", len(got), len(lines))
		}
		f.stop(t)
	})
}

// takeover is what a node writes each time that it changes its own boot id.
func takeover(user string) Record {
	return Record{
		Caller: &authn.Caller{User: authn.User{Name: user}}, Method: "/a.B/Beat", Object: "leases/a", Decision: Allowed, Repeatable: true,
	}
}

func TestLog_RepeatableCallsOfOneIdentityAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, DefaultConfig())
		f.start(t)
		for range 3000 {
			f.Write(takeover("system:node:a"))
		}
		f.Write(takeover("system:node:b"))
		f.Write(denial("system:node:a")) // has a limit of its own
		for i := range 3 * burst {
			f.Write(mutation(i)) // has no limit
		}
		synctest.Wait()
		if lines := f.written.lines(t); len(lines) != burst+2+3*burst {
			t.Errorf("%d lines at once, want %d", len(lines), burst+2+3*burst)
		}
		if suppressed := f.count(t, "trivet_audit_suppressed_total"); suppressed != 3000-burst {
			t.Errorf("the metric tells of %v suppressed records, want %d", suppressed, 3000-burst)
		}
		time.Sleep(summaryPeriod + time.Second)
		lines := f.written.lines(t)
		want := map[string]any{
			"level": "INFO", "msg": "audit: further takeovers and releases", "decision": "allow", "user": "system:node:a", "address": "",
			"suppressed": float64(3000 - burst), "last_method": "/a.B/Beat", "last_object": "leases/a",
		}
		if diff := cmp.Diff(want, lines[len(lines)-1]); diff != "" {
			t.Errorf("the summary differs (-want +got):\n%s", diff)
		}
		f.stop(t)
	})
}

func TestLog_EachNodeOfALargeClusterHasItsTakeover(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	for i := range queueLength {
		f.Write(takeover(fmt.Sprint("system:node:", i)))
	}
	if queued := len(f.queue); queued != queueLength {
		t.Errorf("%d records are queued, want %d", queued, queueLength)
	}
}

func TestLog_ManyIdentitiesShareOneLimit(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	for i := range 3 * maxDenied {
		f.Write(denial(fmt.Sprint("eve-", i)))
	}
	if kept := len(f.denials.users); kept > maxDenied+1 {
		t.Errorf("%d identities are kept, want %d at most", kept, maxDenied+1)
	}
	if queued := len(f.queue); queued != maxDenied+burst {
		t.Errorf("%d records are queued, want %d", queued, maxDenied+burst)
	}
	f.start(t)
	f.stop(t)
	lines := f.written.lines(t)
	last := lines[len(lines)-1]
	if last["several_users"] != true || last["suppressed"] != float64(2*maxDenied-burst) {
		t.Errorf("the summary is %v", last)
	}
	if len(f.denials.users) == 0 {
		t.Error("identities ahead of their rate are forgotten")
	}
}

// An attacker without credentials has as many IPv6 addresses as it likes.
func TestLog_AddressesHideNoDenialOfAUser(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	for i := range 3 * maxDenied {
		for _, address := range []string{"[2001:db8::%x]:1", "[2001:db8:0:%x::1]:1"} { // of one client, and of many
			r := denial(authn.AnonymousUser)
			r.Caller.Address = fmt.Sprintf(address, i+1)
			f.Write(r)
		}
	}
	if queued := len(f.queue); queued > maxDenied+2*burst {
		t.Errorf("%d records are queued, want one for each network at most", queued)
	}
	queued := len(f.queue)
	for _, node := range []string{"node-1", "node-2"} { // the agents of all nodes have one user
		for range 2 * burst {
			r := denial("system:serviceaccount:trivet-system:trivet-agent")
			r.Caller.User.Extra = map[string][]string{nodeNameKey: {node}}
			f.Write(r)
		}
	}
	if own := len(f.queue) - queued; own != 2*burst {
		t.Errorf("%d denials of two nodes are recorded, want %d", own, 2*burst)
	}
}

func TestLog_RecordsThatWaitAreSmall(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	r := denial("eve")
	r.Object, r.Method = strings.Repeat("x", 64<<10), strings.Repeat("y", 64<<10)
	f.Write(r)
	if waiting := <-f.queue; len(waiting.Object)+len(waiting.Method) > 4*maxText {
		t.Errorf("a record with %d bytes waits", len(waiting.Object)+len(waiting.Method))
	}
}

func TestLog_CallersWithoutIdentityCountByAddress(t *testing.T) {
	f := newFixture(t, DefaultConfig())
	for port := range 100 {
		for _, host := range []string{"10.0.0.1", "10.0.0.2"} {
			r := denial(authn.AnonymousUser)
			r.Caller.Address = fmt.Sprintf("%s:%d", host, port)
			f.Write(r)
		}
	}
	f.Write(Record{Decision: Denied}) // no caller at all
	if queued := len(f.queue); queued != 2*burst+1 {
		t.Errorf("%d records are queued, want %d of each address and one", queued, burst)
	}
}

func TestLog_FileRotates(t *testing.T) {
	cfg := Config{File: filepath.Join(t.TempDir(), "audit.log"), MaxBytes: minFileBytes, Backups: 2}
	f := newFixture(t, cfg)
	f.start(t)
	const records = 30_000
	for i := range records {
		for len(f.queue) == queueLength {
			time.Sleep(time.Millisecond) // until the writer has taken one
		}
		f.Write(mutation(i))
	}
	f.stop(t)
	next := -1
	for _, name := range []string{cfg.File + ".2", cfg.File + ".1", cfg.File} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil || info.Size() > cfg.MaxBytes || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %d bytes and mode %v (%v)", name, info.Size(), info.Mode(), err)
		}
		for _, line := range decode(t, content) {
			if id := line["request_id"]; next >= 0 && id != fmt.Sprint(next) {
				t.Fatalf("%s has record %v, want %d", name, id, next)
			}
			var id int
			if _, err := fmt.Sscan(line["request_id"].(string), &id); err != nil {
				t.Fatal(err)
			}
			next = id + 1
		}
	}
	if next != records {
		t.Errorf("the last record is %d, want %d", next-1, records-1)
	}
	if _, err := os.Stat(cfg.File + ".3"); !os.IsNotExist(err) {
		t.Errorf("a third backup exists (%v)", err)
	}
}

func TestLog_FileThatCannotBeWrittenIsReportedAndTriedAgain(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := Config{File: filepath.Join(folder, "audit.log"), MaxBytes: minFileBytes}
	f := newFixture(t, cfg)
	warnings := &text{}
	f.logger = slog.New(slog.NewJSONHandler(warnings, nil))
	if err := f.file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	f.write(mutation(1))
	f.write(mutation(2))
	if f.count(t, "trivet_audit_write_failures_total") != 2 || len(warnings.lines(t)) != 1 {
		t.Errorf("%v failures and the warnings %v, want 2 and one warning", f.count(t, "trivet_audit_write_failures_total"), warnings.lines(t))
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	f.write(mutation(3))
	if err := f.Log.end(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(cfg.File)
	if lines := decode(t, content); err != nil || len(lines) != 1 || lines[0]["request_id"] != "3" {
		t.Errorf("the file has %s (%v), want record 3", content, err)
	}
}

func TestLog_EmptyFileMeansNoLog(t *testing.T) {
	log, err := New(Config{}, slog.New(slog.DiscardHandler), nil)
	if err != nil || log != nil {
		t.Fatalf("New() = %v, %v, want nil", log, err)
	}
	log.Write(denial("eve"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Run(ctx); err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestConfig_ValidateNamesFlags(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"small file":    {Config{File: "a", MaxBytes: 1}, "--audit-log-max-bytes"},
		"backups":       {Config{File: "a", MaxBytes: minFileBytes, Backups: -1}, "--audit-log-backups"},
		"no folder":     {Config{File: "/nowhere/a", MaxBytes: minFileBytes}, "--audit-log-file"},
		"process log":   {Config{File: "-"}, ""},
		"none":          {Config{}, ""},
		"file":          {Config{File: "a", MaxBytes: minFileBytes}, ""},
		"default limit": {DefaultConfig(), ""},
	} {
		problems := c.cfg.Validate()
		if c.want == "" && len(problems) != 0 || c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want)) {
			t.Errorf("%s: Validate() = %v, want %q", name, problems, c.want)
		}
	}
}
